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

// In C++20 std::stringbuf::str() is another function, since GCC 11, for a buffer that stays. It
// returns a string by an address in a register, so the call is passed on as it came.
#if defined(__x86_64__)
#define PASS_ON "jmp first_text@PLT"
#elif defined(__aarch64__)
#define PASS_ON "b first_text"
#endif
#define LATER "__wrap__ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
__asm__(
    ".symver first_text, "
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv@GLIBCXX_3.4.21\n"
    ".text\n.globl " LATER "\n.hidden " LATER "\n.type " LATER ", %function\n" LATER ":\n" PASS_ON
    "\n.size " LATER ", . - " LATER "\n");
