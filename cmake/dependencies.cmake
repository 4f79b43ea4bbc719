# Third-party packages: Debian's libraries, and torch from the Python environment that `make setup` makes.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
find_package(benchmark REQUIRED)

if(NOT FLAMBEAU_PYTHON)
  set(FLAMBEAU_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
endif()
if(NOT EXISTS ${FLAMBEAU_PYTHON})
  message(FATAL_ERROR "No Python at ${FLAMBEAU_PYTHON}. Run `make setup`, or set FLAMBEAU_PYTHON.")
endif()
if(NOT EXISTS "${FLAMBEAU_PJRT_HEADERS}/xla/pjrt/c/pjrt_c_api.h")
  message(FATAL_ERROR "No xla/pjrt/c/pjrt_c_api.h under '${FLAMBEAU_PJRT_HEADERS}'. Run `make setup`, or set FLAMBEAU_PJRT_HEADERS.")
endif()

add_library(pjrt_headers INTERFACE)
target_include_directories(pjrt_headers SYSTEM INTERFACE ${FLAMBEAU_PJRT_HEADERS})

# Asking Python costs seconds, so the answers are cached and asked for again when the interpreter changes.
if(NOT "${FLAMBEAU_PYTHON}" STREQUAL "${FLAMBEAU_PYTHON_ASKED}")
  execute_process(
    COMMAND ${FLAMBEAU_PYTHON} -c
      "import sysconfig, importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin), sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(GET answer 0 torch_root)
  list(GET answer 1 python_include)
  list(GET answer 2 python_suffix)
  set(FLAMBEAU_TORCH ${torch_root} CACHE INTERNAL "")
  set(FLAMBEAU_PYTHON_INCLUDE ${python_include} CACHE INTERNAL "")
  set(FLAMBEAU_PYTHON_SUFFIX ${python_suffix} CACHE INTERNAL "")
  set(FLAMBEAU_PYTHON_ASKED ${FLAMBEAU_PYTHON} CACHE INTERNAL "")
endif()

add_library(torch INTERFACE)
target_include_directories(torch SYSTEM INTERFACE
  ${FLAMBEAU_TORCH}/include ${FLAMBEAU_TORCH}/include/torch/csrc/api/include)
target_link_libraries(torch INTERFACE
  "-Wl,--no-as-needed" ${FLAMBEAU_TORCH}/lib/libtorch.so ${FLAMBEAU_TORCH}/lib/libtorch_cpu.so ${FLAMBEAU_TORCH}/lib/libc10.so
  "-Wl,--as-needed")

add_library(torch_python INTERFACE)
target_include_directories(torch_python SYSTEM INTERFACE ${FLAMBEAU_PYTHON_INCLUDE})
target_link_libraries(torch_python INTERFACE torch ${FLAMBEAU_TORCH}/lib/libtorch_python.so)
