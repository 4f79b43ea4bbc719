// The torch headers that every torch-facing file of Flambeau uses, compiled once.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <fmt/format.h>
#include <torch/library.h>
