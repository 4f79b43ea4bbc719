#include "train/interrupt.h"

#include <csignal>

namespace flambeau::train {
namespace {

volatile std::sig_atomic_t received = 0;

void note(int signal) {
  received = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

int received_signal() { return received; }
bool interrupted() { return received != 0; }
int exit_code(int signal) { return signal == 0 ? 0 : 128 + signal; }

InterruptGuard::InterruptGuard() {
  received = 0;
  std::signal(SIGINT, &note);
  std::signal(SIGTERM, &note);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace flambeau::train
