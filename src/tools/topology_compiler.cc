// topology_compiler FOLDER: the child of pjrt::compile_apart, which prepared the folder.
#include <cstdio>

#include <unistd.h>

#include "pjrt/topology_compiler.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs(
        "usage: topology_compiler FOLDER\n(a part of Flambeau that other programs start; see pjrt/topology_compiler.h)\n",
        stderr);
    return 2;
  }
  const int code = flambeau::pjrt::run_topology_job(argv[1]);
  std::fflush(nullptr);
  _exit(code);  // the result is on disk: the plugin's own end, which takes seconds for a large program, is not waited for
}
