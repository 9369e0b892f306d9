// The program around gVisor's tests: it prints a line of JSON when a test begins and one when it
// ends, so that a test that hangs or kills the program is known by name.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace gvisor::testing {

// Its other definition needs a library for benchmarks.
void SetupGvisorDeathTest() {}

}  // namespace gvisor::testing

namespace {

class Lines : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { Say(test, "begin"); }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    Say(test, result.Failed() ? "fail" : result.Skipped() ? "skip" : "pass");
  }

  // One write for each line, because tests fork while the stream has a buffer.
  void Say(const ::testing::TestInfo& test, const char* result) {
    std::fflush(stdout);
    std::string line = std::string("{\"test\": \"") + test.test_suite_name() + "." + test.name() +
                       "\", \"result\": \"" + result + "\"}\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
  }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Lines);
  // gVisor's own program does so, too.
  signal(SIGPIPE, SIG_IGN);
  return RUN_ALL_TESTS();
}
