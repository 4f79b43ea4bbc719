#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "hlo/builder.h"
#include "hlo/elements.h"
#include "hlo/print.h"

namespace flambeau::hlo {
namespace {

TEST(Print, SmallProgram) {
  Graph g;
  Builder b(g);
  const Value x = g.add_parameter({DType::F32, {2, 3}}, {.aliasing_output = 0});
  const Value y = g.add_parameter({DType::BF16, {}}, {.donor = true});
  b.set_site("aten::add \"(train.py:12)");
  const Value sum = b.add(x, b.broadcast(b.convert(y, DType::F32), {2, 3}));
  b.set_site("");
  g.set_results({sum, b.reduce(sum, {1}, Reduction::Max)});
  EXPECT_EQ(print(g, {.module_name = "step", .sites = true}), R"hlo(module @step {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<bf16> {jax.buffer_donor = true}) -> (tensor<2x3xf32>, tensor<2xf32>) {
    %0 = "stablehlo.convert"(%arg1) : (tensor<bf16>) -> tensor<f32> loc("aten::add \22(train.py:12)")
    %1 = "stablehlo.broadcast_in_dim"(%0) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32> loc("aten::add \22(train.py:12)")
    %2 = "stablehlo.add"(%arg0, %1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32> loc("aten::add \22(train.py:12)")
    %3 = "stablehlo.constant"() <{value = dense<0xFF800000> : tensor<f32>}> : () -> tensor<f32>
    %4 = "stablehlo.reduce"(%2, %3) <{dimensions = array<i64: 1>}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = "stablehlo.maximum"(%5, %6) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%7) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    "func.return"(%2, %4) : (tensor<2x3xf32>, tensor<2xf32>) -> ()
  }
}
)hlo");
  EXPECT_EQ(print(g).find("loc("), std::string::npos);
  EXPECT_EQ(print(g, {.module_name = "a b"}).substr(0, 15), "module @\"a b\" {");
}

TEST(Print, MeshAndSeveralResults) {
  Graph g;
  g.set_mesh({{{"data", 4}, {"tensor", 2}}});
  Builder b(g);
  const Sharding rows{.dims = {{.axes = {"data"}}, {.open = true}}, .replicated = {"tensor"}};
  const Value x = g.add_parameter({DType::F32, {8, 2}}, {.sharding = rows});
  auto local = b.manual_computation(
      std::array{x}, std::array{rows}, std::array{rows}, {"tensor", "data"}, [](Builder& in, std::span<const Value> p) {
        return std::vector{in.all_reduce(p[0], Reduction::Sum, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 3)};
      });
  auto pair = b.optimization_barrier(std::array{local[0], x});
  g.set_results({pair[1]}, {{.sharding = rows}});
  EXPECT_EQ(print(g), R"hlo(module @flambeau {
  sdy.mesh @mesh = <["data"=4, "tensor"=2]>
  func.func public @main(%arg0: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {?}], replicated={"tensor"}>}) -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {?}], replicated={"tensor"}>}) {
    %0 = "sdy.manual_computation"(%arg0) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"data"}, {?}], replicated={"tensor"}>]>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"data"}, {?}], replicated={"tensor"}>]>, manual_axes = #sdy<manual_axes{"data", "tensor"}>}> ({
    ^bb0(%1: tensor<2x2xf32>):
      %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, use_global_device_ids = unit}> ({
      ^bb0(%3: tensor<f32>, %4: tensor<f32>):
        %5 = "stablehlo.add"(%3, %4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        "stablehlo.return"(%5) : (tensor<f32>) -> ()
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      "sdy.return"(%2) : (tensor<2x2xf32>) -> ()
    }) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %6:2 = "stablehlo.optimization_barrier"(%0, %arg0) : (tensor<8x2xf32>, tensor<8x2xf32>) -> (tensor<8x2xf32>, tensor<8x2xf32>)
    "func.return"(%6#1) : (tensor<8x2xf32>) -> ()
  }
}
)hlo");
}

// The line that the only node of a graph is printed as.
std::string printed(const std::function<Value(Builder&, Graph&)>& make) {
  Graph g;
  Builder b(g);
  g.set_results({make(b, g)});
  const std::string text = print(g);
  const size_t from = text.find("    %0 = ") + 9;
  return text.substr(from, text.find("\n    \"func.return\"") - from);
}

TEST(Print, Attributes) {
  struct Case {
    std::function<Value(Builder&, Graph&)> make;
    std::string text;
  };
  const Case
      cases
          [] =
              {
                  {[](Builder& b, Graph& g) {
                     const Value x = g.add_parameter({DType::F32, {2, 3, 4}});
                     return b.dot_general(
                         x, x, {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contracting = {2}, .rhs_contracting = {2}});
                   },
                   R"("stablehlo.dot_general"(%arg0, %arg0) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2]>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x3xf32>)"},
                  {[](Builder& b, Graph& g) {
                     const Value x = g.add_parameter({DType::F32, {3, 2}});
                     return b.gather(
                         x, g.add_parameter({DType::S32, {4}}),
                         {.offset_dims = {1}, .collapsed_slice_dims = {0}, .start_index_map = {0}, .index_vector_dim = 1},
                         {1, 2});
                   },
                   R"("stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], operand_batching_dims = [], start_indices_batching_dims = [], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>, indices_are_sorted = false}> : (tensor<3x2xf32>, tensor<4xi32>) -> tensor<4x2xf32>)"},
                  {[](Builder& b, Graph& g) {
                     const Value input = g.add_parameter({DType::F32, {1, 5, 2}});
                     return b.convolution(input, g.add_parameter({DType::F32, {3, 2, 4}}),
                                          {.input_batch = 0,
                                           .input_feature = 2,
                                           .input_spatial = {1},
                                           .kernel_output_feature = 2,
                                           .kernel_input_feature = 1,
                                           .kernel_spatial = {0},
                                           .output_batch = 0,
                                           .output_feature = 2,
                                           .output_spatial = {1}},
                                          {.padding_low = {1}, .padding_high = {1}}, 1, 1, {}, Precision::Default);
                   },
                   R"("stablehlo.convolution"(%arg0, %arg1) <{window_strides = array<i64: 1>, padding = dense<[[1, 1]]> : tensor<1x2xi64>, lhs_dilation = array<i64: 1>, rhs_dilation = array<i64: 1>, window_reversal = array<i1: false>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64, batch_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<1x5x2xf32>, tensor<3x2x4xf32>) -> tensor<1x5x4xf32>)"},
                  {[](Builder& b, Graph& g) {
                     Builder::CustomCall call{.target = "softmax", .results = {{DType::F32, {2, 3}}}, .aliases = {{0, 0}}};
                     call.attributes = {{"rate", 0.5},
                                        {"axis", int64_t{1}},
                                        {"name", std::string("a\"\n")},
                                        {"sizes", Dims{1, 2}},
                                        {"fast", true}};
                     return b.custom_call(
                         std::array{g.add_parameter({DType::F32, {2, 3}}), g.add_parameter({DType::F32, {}})}, call)[0];
                   },
                   R"("stablehlo.custom_call"(%arg0, %arg1) <{call_target_name = "softmax", has_side_effect = false, api_version = 4 : i32, backend_config = {axis = 1 : i64, fast = true, name = "a\22\0A", rate = 0.5 : f64, sizes = array<i64: 1, 2>}, operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}> : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>)"},
                  {[](Builder& b, Graph& g) {
                     return b.custom_call(
                         std::array{g.add_parameter({DType::F32, {}})},
                         {.target = "old", .results = {{DType::F32, {}}}, .opaque = "x=1", .has_side_effect = true})[0];
                   },
                   R"("stablehlo.custom_call"(%arg0) <{call_target_name = "old", has_side_effect = true, api_version = 2 : i32, backend_config = "x=1", operand_layouts = [dense<> : tensor<0xindex>], result_layouts = [dense<> : tensor<0xindex>]}> : (tensor<f32>) -> tensor<f32>)"},
                  {[](Builder& b, Graph& g) { return b.in_memory(g.add_parameter({DType::F32, {}}), "pinned_host"); },
                   R"("stablehlo.custom_call"(%arg0) <{call_target_name = "annotate_device_placement", has_side_effect = true, backend_config = ""}> {mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<f32>) -> tensor<f32>)"},
              };
  for (const Case& c : cases) EXPECT_EQ(printed(c.make), c.text);
}

TEST(Print, Literals) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  auto list = [](DType t, Dims dims, std::vector<double> numbers) {
    Literal literal{{t, std::move(dims)}, {}};
    for (double n : numbers)
      literal.bytes += is_complex(t) ? encode_complex(t, {n, -n})
                       : is_float(t) ? encode_float(t, n)
                                     : encode_integer(t, static_cast<uint64_t>(static_cast<int64_t>(n)));
    return literal_text(literal);
  };
  EXPECT_EQ(list(DType::F32, {2, 2}, {1, -0.0, 0.1, 1e20}),
            "dense<[[1.0, -0.0], [0.10000000149011612, 1.0000000200408773e+20]]>");
  EXPECT_EQ(list(DType::F64, {3}, {1e300, 1e-5, 5e-324}), "dense<[1.0e+300, 1.0e-05, 5.0e-324]>");
  EXPECT_EQ(list(DType::F32, {3}, {kInf, -kInf, kNan}), "dense<[0x7F800000, 0xFF800000, 0x7FC00000]>");
  EXPECT_EQ(list(DType::BF16, {2}, {kInf, 3}), "dense<[0x7F80, 3.0]>");
  EXPECT_EQ(list(DType::F16, {2}, {-kInf, 3}), "dense<[0xFC00, 3.0]>");
  EXPECT_EQ(list(DType::F8E4M3FN, {2}, {kNan, 448}), "dense<[0x7F, 448.0]>");
  EXPECT_EQ(list(DType::F8E5M2, {2}, {kInf, 1.25}), "dense<[0x7C, 1.25]>");
  EXPECT_EQ(list(DType::C64, {1, 2}, {1, kInf}), "dense<[[(1.0, -1.0), (0x7F800000, 0xFF800000)]]>");
  EXPECT_EQ(list(DType::U8, {2}, {255, 0}), "dense<[255, 0]>");
  EXPECT_EQ(list(DType::U64, {2}, {-1, 0}), "dense<[18446744073709551615, 0]>");
  EXPECT_EQ(list(DType::S64, {2}, {-9223372036854775808.0, 1}), "dense<[-9223372036854775808, 1]>");
  EXPECT_EQ(list(DType::Pred, {3}, {1, 0, 1}), "dense<[true, false, true]>");
  EXPECT_EQ(list(DType::S16, {}, {-2}), "dense<-2>");
  EXPECT_EQ(list(DType::S16, {5, 7}, {-2}), "dense<-2>");  // one element stands for all
  EXPECT_EQ(list(DType::F32, {0, 3}, {}), "dense<>");
  std::vector<double> many(17);
  many[1] = 1;
  EXPECT_EQ(list(DType::S16, {17}, many), "dense<\"0x00000100" + std::string(60, '0') + "\">");
  EXPECT_EQ(list(DType::Pred, {17}, many).substr(0, 20), "dense<[false, true, ");
}

TEST(Print, SignaturesThatCannotBe) {
  struct Case {
    Signature parameter, result;
    std::string message;
  };
  const Case cases[] = {
      {{.aliasing_output = 2}, {}, "[aliasing_output of parameter 0] expected an output in [0, 2), got 2"},
      {{.aliasing_output = 1},
       {},
       "[aliasing_output of parameter 0] expected an output of type tensor<8xf32>, got tensor<8xi32>"},
      {{.sharding = Sharding{.dims = {{}, {}}}},
       {},
       "[sharding of parameter 0] expected a sharding of 1 dimensions, got <@mesh, [{}, {}]>"},
      {{.sharding = Sharding{.dims = {{.axes = {"b"}}}}},
       {},
       "[sharding of parameter 0] expected axes of the mesh, got \"b\" in <@mesh, [{\"b\"}]>"},
      {{},
       {.sharding = Sharding{.dims = {{.axes = {"a"}}}, .replicated = {"a"}}},
       "[sharding of result 0] expected each axis at most once, got \"a\" twice in <@mesh, [{\"a\"}], replicated={\"a\"}>"},
  };
  for (const Case& c : cases) {
    Graph g;
    g.set_mesh({{{"a", 2}}});
    Builder b(g);
    const Value x = g.add_parameter({DType::F32, {8}}, c.parameter);
    g.set_results({x, b.constant(DType::S32, 1, {8})}, {c.result, {}});
    try {
      print(g);
      ADD_FAILURE() << "no error, expected: " << c.message;
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(e.what(), c.message);
    }
  }
  Graph g;
  const Value x = g.add_parameter({DType::F32, {}}, {.aliasing_output = 0});
  g.add_parameter({DType::F32, {}}, {.aliasing_output = 0});
  g.set_results({x});
  EXPECT_THROW(print(g), InvalidArgument);
  Graph without_mesh;
  without_mesh.set_results({without_mesh.add_parameter({DType::F32, {}}, {.sharding = Sharding{}})});
  EXPECT_THROW(print(without_mesh), InvalidArgument);
}

}  // namespace
}  // namespace flambeau::hlo
