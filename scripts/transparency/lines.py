"""Runs the tests of a unittest module and prints one line of JSON for each: lines.py MODULE..."""

import json
import logging
import sys
import unittest


class Result(unittest.TestResult):
    def say(self, test, result):
        print(json.dumps({"test": test.id(), "result": result}), flush=True)

    def addSuccess(self, test):
        self.say(test, "pass")

    def addSkip(self, test, reason):
        self.say(test, "skip")

    def addFailure(self, test, error):
        self.say(test, "fail")

    def addError(self, test, error):
        self.say(test, "fail")

    def addSubTest(self, test, subtest, error):
        if error:
            self.say(test, "fail")

    def addExpectedFailure(self, test, error):
        self.say(test, "pass")


# Tornado's own test runner does the same: its tests expect that nothing is logged.
logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
for module in sys.argv[1:]:
    unittest.defaultTestLoader.loadTestsFromName(module).run(Result())
