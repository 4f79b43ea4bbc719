#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace flambeau {

void check_failed(const char* condition, const char* file, int line, std::string_view invariant) {
  fmt::print(stderr, "flambeau: a bug of ours at {}:{}: {} ({}). Please report it.\n", file, line, invariant, condition);
  std::abort();
}

}  // namespace flambeau
