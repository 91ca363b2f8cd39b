// Linked into the adapters of a wheel, so that they load with glibc 2.28 and the libstdc++ of GCC 8
// wherever they were built. What is in here is listed in `xtask/src/wheel/symbols.rs`.
#include <pthread.h>

// The compiler's headers ask this of glibc 2.32 and later to save atomic instructions in processes
// of one thread. "No" is always right.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// pthread_once has a second version since glibc 2.34, which does the same. The linker's --wrap
// leads calls here, and from here to the first one, which each glibc has.
#if defined(__x86_64__)
__asm__(".symver first_pthread_once, pthread_once@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver first_pthread_once, pthread_once@GLIBC_2.17");
#endif
int first_pthread_once(pthread_once_t* control, void (*routine)(void));

__attribute__((visibility("hidden"))) int __wrap_pthread_once(
    pthread_once_t* control, void (*routine)(void)) {
  return first_pthread_once(control, routine);
}

// std::condition_variable::wait(std::unique_lock<std::mutex>&) has a second version since GCC 12,
// whose only news is that it throws nothing. A member function takes its object first.
__asm__(
    ".symver first_wait, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void first_wait(void* condition, void* lock);

__attribute__((visibility("hidden"))) void
__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* condition, void* lock) {
  first_wait(condition, lock);
}
