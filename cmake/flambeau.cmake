# How a folder becomes a target. `src/foo/*.cc` is the library `foo`; `src/foo/*_test.cc` is the test program `foo_test`.
# `src/foo/testing/*.cc` is `foo_testing`, for the tests of foo and of the folders that may include it.
add_library(flambeau_options INTERFACE)
target_include_directories(flambeau_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
# -fPIC for programs too, after CMake's -fPIE: the precompiled header is compiled once, for libraries.
target_compile_options(flambeau_options INTERFACE -Wall -Wextra -Werror -fPIC)
# GCC 12 warns of overlapping copies inside its own std::string (GCC bug 105651).
target_compile_options(flambeau_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# fmt as headers: torch brings a version of its own, and no symbol of either may be taken for the other's.
target_compile_definitions(flambeau_options INTERFACE FMT_HEADER_ONLY=1)
target_link_libraries(flambeau_options INTERFACE Threads::Threads)
find_program(MOLD mold)
if(MOLD)
  # Without RELRO: mold 1.10 lets it begin before its segment where thread-local zeroes come first, and when that segment begins
  # a page, which is chance, the loader refuses the program ("cannot apply additional memory protection").
  target_link_options(flambeau_options INTERFACE -fuse-ld=mold -Wl,-z,norelro)
endif()
if(FLAMBEAU_SANITIZE)
  add_compile_options(-fsanitize=${FLAMBEAU_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${FLAMBEAU_SANITIZE})
endif()

file(WRITE ${CMAKE_BINARY_DIR}/generated/flambeau_version.h.new "#pragma once\n#define FLAMBEAU_VERSION \"${PROJECT_VERSION}\"\n")
file(COPY_FILE ${CMAKE_BINARY_DIR}/generated/flambeau_version.h.new ${CMAKE_BINARY_DIR}/generated/flambeau_version.h ONLY_IF_DIFFERENT)

# A Python program that Flambeau runs where JAX is installed, as a text: wherever the executable goes, it goes with it.
set(FLAMBEAU_TPU_ATTENTION ${CMAKE_SOURCE_DIR}/python/flambeau/tpu_attention.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FLAMBEAU_TPU_ATTENTION})
file(READ ${FLAMBEAU_TPU_ATTENTION} script)
file(WRITE ${CMAKE_BINARY_DIR}/generated/flambeau_tpu_attention.h.new
  "#pragma once\ninline constexpr char kTpuAttentionScript[] = R\"python(${script})python\";\n")
file(COPY_FILE ${CMAKE_BINARY_DIR}/generated/flambeau_tpu_attention.h.new ${CMAKE_BINARY_DIR}/generated/flambeau_tpu_attention.h ONLY_IF_DIFFERENT)

# Headers that take seconds to parse, compiled once: torch's for the files that use torch, the standard library's and fmt for the
# others. clang instantiates their templates once, too.
function(_flambeau_pch name)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN})
  target_precompile_headers(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/${name}.h)
  _flambeau_pch_options(${name})
endfunction()

function(_flambeau_pch_options target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fpch-instantiate-templates")
  endif()
endfunction()

_flambeau_pch(std_pch)
_flambeau_pch(torch_pch torch)

# The target's precompiled header; torch with it where `uses_torch`.
function(_flambeau_headers target uses_torch)
  if(uses_torch)
    target_link_libraries(${target} PRIVATE torch)
    target_precompile_headers(${target} REUSE_FROM torch_pch)
    set_target_properties(${target} PROPERTIES BUILD_RPATH ${FLAMBEAU_TORCH}/lib)
  else()
    target_precompile_headers(${target} REUSE_FROM std_pch)
  endif()
  _flambeau_pch_options(${target})
endfunction()

function(_flambeau_sources folder out_sources out_tests)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc ${CMAKE_SOURCE_DIR}/${folder}/*/*.cc)
  list(FILTER sources EXCLUDE REGEX "/testing/")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(${out_sources} ${sources} PARENT_SCOPE)
  set(${out_tests} ${tests} PARENT_SCOPE)
endfunction()

# What became of each test is written to a file of its own, which tests/skips.py reads.
function(_flambeau_add_test name program)
  add_test(NAME ${name} COMMAND ${program} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_property(TEST ${name} PROPERTY ENVIRONMENT GTEST_OUTPUT=json:${CMAKE_BINARY_DIR}/test_results/${name}.json)
endfunction()

function(_flambeau_library name uses_torch)
  _flambeau_sources(src/${name} sources tests)
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARGN})
  else()
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PRIVATE flambeau_options PUBLIC ${ARGN})
    _flambeau_headers(${name} ${uses_torch})
    _flambeau_extras(${name})
  endif()
  file(GLOB testing CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/testing/*.cc)
  if(testing)
    add_library(${name}_testing STATIC EXCLUDE_FROM_ALL ${testing})
    target_link_libraries(${name}_testing PRIVATE flambeau_options PUBLIC ${name})
    _flambeau_headers(${name}_testing OFF)
    _flambeau_extras(${name}_testing)
  endif()
  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE flambeau_options ${name} GTest::gmock GTest::gtest_main)
    foreach(folder ${name} ${ARGN})
      if(TARGET ${folder}_testing)
        target_link_libraries(${name}_test PRIVATE ${folder}_testing)
      endif()
    endforeach()
    _flambeau_headers(${name}_test ${uses_torch})
    _flambeau_extras(${name}_test)
    _flambeau_add_test(${name}_test ${name}_test)
  endif()
endfunction()

# Libraries from elsewhere that one folder alone uses.
function(_flambeau_extras target)
  string(REGEX REPLACE "_test(ing)?$" "" folder ${target})
  if(folder STREQUAL "pjrt")
    target_link_libraries(${target} PRIVATE pjrt_headers PkgConfig::zstd dl)
  elseif(folder STREQUAL "base")
    target_link_libraries(${target} PRIVATE PkgConfig::xxhash)
  elseif(folder STREQUAL "kernels" AND target MATCHES "_test$")
    target_link_libraries(${target} PRIVATE pjrt_headers)
  elseif(folder STREQUAL "runtime" AND target MATCHES "_test$")
    find_library(RAPIDCHECK rapidcheck REQUIRED)
    target_link_libraries(${target} PRIVATE ${RAPIDCHECK})
  endif()
endfunction()

function(flambeau_library name)
  _flambeau_library(${name} OFF ${ARGN})
endfunction()

function(flambeau_torch_library name)
  _flambeau_library(${name} ON ${ARGN})
endfunction()

# A test program over several folders: `folder`/*.cc, among them sources that its tests share.
function(_flambeau_test name folder uses_torch)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN} GTest::gmock GTest::gtest_main)
  _flambeau_headers(${name} ${uses_torch})
  _flambeau_add_test(${name} ${name})
endfunction()

# Runs a test program in `count` parts, side by side.
function(flambeau_test_shards name count)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=${count} GTEST_SHARD_INDEX=0)
  math(EXPR last "${count} - 1")
  foreach(i RANGE 1 ${last})
    _flambeau_add_test(${name}_${i} ${name})
    set_property(TEST ${name}_${i} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=${count} GTEST_SHARD_INDEX=${i})
  endforeach()
endfunction()

function(flambeau_test name folder)
  _flambeau_test(${name} ${folder} OFF ${ARGN})
endfunction()

function(flambeau_torch_test name folder)
  _flambeau_test(${name} ${folder} ON ${ARGN})
endfunction()

function(flambeau_executable name folder)
  _flambeau_sources(src/${folder} sources tests)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN})
  _flambeau_headers(${name} ON)
endfunction()

# A small program in one file, `folder`/`name`.cc.
function(_flambeau_program name folder uses_torch)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/${folder}/${name}.cc)
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN})
  _flambeau_headers(${name} ${uses_torch})
endfunction()

function(flambeau_program name folder)
  _flambeau_program(${name} ${folder} OFF ${ARGN})
endfunction()

function(flambeau_torch_program name folder)
  _flambeau_program(${name} ${folder} ON ${ARGN})
endfunction()

# A program of bench/ in one file, built only when it is asked for by name.
function(flambeau_benchmark name)
  add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/${name}.cc)
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN})
  _flambeau_headers(${name} ON)
endfunction()

# The Python extension `flambeau._C`, written beside the Python sources so that they import from the checkout.
function(flambeau_python_module name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  # A module with sanitizers would take the ordinary one's place, and Python could not load it.
  if(NOT sources OR FLAMBEAU_SANITIZE)
    return()
  endif()
  add_library(${name} MODULE ${sources})
  target_link_libraries(${name} PRIVATE flambeau_options ${ARGN} torch_python)
  target_compile_definitions(${name} PRIVATE TORCH_EXTENSION_NAME=${name})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ${FLAMBEAU_PYTHON_SUFFIX}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} BUILD_RPATH ${FLAMBEAU_TORCH}/lib)
endfunction()
