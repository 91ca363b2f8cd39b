// Says what a fault in the engine's memory means, and lets it take its course.
#include "faults.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "smartswap.h"

namespace smartswap {

namespace {

// What memory that is not mapped, or not backed, ends in.
constexpr int kSignals[] = {SIGSEGV, SIGBUS};

struct sigaction actions_before[NSIG];
bool is_watching = false;

void on_fault(int signal, siginfo_t* info, void*) {
  char text[512];
  if (smartswap_describe_fault(info->si_addr, text, sizeof(text)) != 0) {
    // Nobody can be told that nothing can be told.
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, strlen(text));
  }
  // The access happens again, and whoever watched before sees it.
  sigaction(signal, &actions_before[signal], nullptr);
}

}  // namespace

void watch_faults() {
  if (is_watching) {
    return;
  }
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) {
    sigaction(signal, &action, &actions_before[signal]);
  }
  is_watching = true;
}

void ignore_faults() {
  if (!is_watching) {
    return;
  }
  for (const int signal : kSignals) {
    struct sigaction now;
    sigaction(signal, nullptr, &now);
    // Whoever came later keeps watching.
    if (now.sa_sigaction == &on_fault) {
      sigaction(signal, &actions_before[signal], nullptr);
    }
  }
  is_watching = false;
}

}  // namespace smartswap
