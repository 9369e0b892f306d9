// Locks of absl as gVisor's tests use them: by reference, which older versions do not have.
#include "absl/synchronization/mutex.h"

namespace absl {
class LockByReference : public MutexLock {
 public:
  using MutexLock::MutexLock;
  explicit LockByReference(Mutex& mutex) : MutexLock(&mutex) {}
};
}  // namespace absl

#define MutexLock LockByReference
