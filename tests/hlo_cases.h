// Programs that between them use every operation of hlo::Op, with inputs and the results they must have. Shared by the tests
// that compile for, and run on, real plugins.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hlo/builder.h"

namespace flambeau::tests {

// One graph with its inputs and what its results must be.
class Program {
 public:
  Program() : b(graph) {}

  hlo::Graph graph;
  hlo::Builder b;

  // A parameter and its value: numbers in row-major order (complex: real, imaginary, ...); one number fills it.
  hlo::Value in(DType dtype, hlo::Dims dims, const std::vector<double>& numbers, hlo::Signature signature = {});
  // A result and its value. Floats may differ by `tolerance`, relative to 1 + |value|; with 0 also the sign of zero must
  // agree.
  void expect(hlo::Value value, const std::vector<double>& numbers, double tolerance = 0, hlo::Signature signature = {});
  void expect_bytes(hlo::Value value, std::string bytes);
  void finish() { graph.set_results(results, result_signatures); }  // after the last expect

  struct Expected {
    std::string bytes;
    double tolerance;
  };
  std::vector<hlo::Literal> inputs;
  std::vector<Expected> expected;
  std::vector<hlo::Value> results;
  std::vector<hlo::Signature> result_signatures;
};

struct Case {
  std::string name;
  std::function<void(Program&)> build;
  int partitions = 1;
  // Plugins ("cpu", "xla-cpu", "tpu") that refuse the program by limits of their own, with a part of what they say.
  std::map<std::string, std::string> refused = {};
};

std::vector<Case> element_wise_cases();
std::vector<Case> constant_cases();
std::vector<Case> movement_cases();
std::vector<Case> region_cases();
std::vector<Case> contraction_cases();
std::vector<Case> partition_cases();
std::vector<Case> all_cases();

// Every difference between a result's bytes and what is expected, as text; empty when it agrees.
std::string difference(const hlo::Type& type, const std::string& got, const Program::Expected& expected);

}  // namespace flambeau::tests
