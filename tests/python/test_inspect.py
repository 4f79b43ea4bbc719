"""inspect_program: what compilers make of programs, as the tests of models and of sharding read it."""


import pytest

from conftest import inspect_program

TYPE = "tensor<2048x512xbf16>"
PROGRAM = f"""
module @m {{
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func public @main(
      %x: {TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}},
      %up: tensor<512x4096xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"model"}}]>}},
      %down: tensor<4096x512xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"model"}}, {{}}]>}},
      %old: {TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>, tf.aliasing_output = 0 : i32}})
      -> ({TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}}) {{
    %h = "stablehlo.dot_general"(%x, %up) {{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1],
      rhs_contracting_dimensions = [0]>}} : ({TYPE}, tensor<512x4096xbf16>) -> tensor<2048x4096xbf16>
    %a = "stablehlo.tanh"(%h) : (tensor<2048x4096xbf16>) -> tensor<2048x4096xbf16>
    %y = "stablehlo.dot_general"(%a, %down) {{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1],
      rhs_contracting_dimensions = [0]>}} : (tensor<2048x4096xbf16>, tensor<4096x512xbf16>) -> {TYPE}
    %z = "stablehlo.add"(%y, %old) : ({TYPE}, {TYPE}) -> {TYPE}
    return %z : {TYPE}
  }}
}}
"""
WHERE = {"cpu": ["--cpu", "8"], "tpu": ["--topology", "v5e:2x4"], "tpu, whole": ["--topology", "v5e:2x4", "--whole"]}


@pytest.fixture
def inspect(tmp_path):
    """inspect(text, "--cpu", "8") is the program's answer; with `code` 2, what it wrote to standard error."""
    return lambda text, *args, code=0: inspect_program(text, tmp_path / "program.mlir", *args, code=code)


@pytest.mark.parametrize("where", WHERE)
def test_tensor_parallel_feed_forward(inspect, where):
    """Columns then rows of the weights over four devices: one sum of the result, over those four."""
    got = inspect(PROGRAM, *WHERE[where])
    assert got["partitions"] == 8
    assert [(p["type"], p["dims"], p["aliased"]) for p in got["parameters"]] == [
        ("bf16", [1024, 512], False), ("bf16", [512, 1024], False), ("bf16", [1024, 512], False), ("bf16", [1024, 512], True)]
    assert got["flops"] == 2 * (2 * 1024 * 512 * 1024)
    assert got["exact"] and got["loops"] == []
    (collective,) = got["collectives"]
    element = {"bf16": 2, "f32": 4}[collective["type"]]  # XLA's CPU compiler sums bfloat16 as float32
    assert collective["kind"] == "all-reduce"
    assert (collective["bytes"], collective["group_size"], collective["axes"]) == (1024 * 512 * element, 4, "model")
    assert (collective["loop_depth"], collective["runs"]) == (0, 1)
    # Arguments and results, one of them in the memory of the other; not much more than the product between.
    arguments = 4 * 1024 * 512 * 2
    assert arguments <= got["memory"]["total"] < arguments + 16 * 1024 * 1024
    if where != "cpu":
        assert got["device_kind"] == "TPU v5 lite" and got["remarks"] == []
        # Four arguments, and the result in the place of one.
        assert [b["bytes"] for b in got["buffers"]["parameters"]] == [1024 * 512 * 2] * 4


def test_tells_what_the_partitioner_regrets(inspect):
    text = """
module @m {
  sdy.mesh @mesh = <["x"=4,"y"=2]>
  func.func public @main(%a: tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}, {"x"}]>})
      -> (tensor<16x16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}, {}]>}) {
    %0 = "stablehlo.add"(%a, %a) : (tensor<16x16x16xf32>, tensor<16x16x16xf32>) -> tensor<16x16x16xf32>
    return %0 : tensor<16x16x16xf32>
  }
}
"""
    got = inspect(text, "--topology", "v5e:2x4")
    assert any("Involuntary full rematerialization" in line for line in got["remarks"])
    assert [(c["kind"], c["bytes"], c["group_size"]) for c in got["collectives"]] == [("all-gather", 16 * 16 * 16 * 4, 8)]


def test_out_of_memory_is_an_answer(inspect):
    huge = PROGRAM.replace("2048x512", "33554432x512").replace("2048x4096", "33554432x4096")
    got = inspect(huge, "--topology", "v5e:2x4")
    assert "RESOURCE_EXHAUSTED" in got["out_of_memory"] and "flops" not in got


@pytest.mark.parametrize("text, args, said", [
    (PROGRAM, ["--topology", "v5e:2x2"], "at most 4 devices"),
    (PROGRAM, ["--topology", "v5e:0x2"], "v5e:0x2"),
    (PROGRAM, ["--topology", "v9e:2x4"], "v9e"),
    ("nonsense", ["--topology", "v5e:2x4"], "pjrt.first_phase"),
    ("nonsense", ["--cpu", "1"], "pjrt.compile"),
    ('sdy.mesh @mesh = <["a"=9999999, "b"=9999999]>', ["--cpu", "8"], "--partitions"),
    ('sdy.mesh @mesh = <["a"=9999999, "b"=9999999]>', ["--cpu", "8", "--partitions", "8"], "pjrt.compile"),
])
def test_says_why_not(inspect, text, args, said):
    assert said in inspect(text, *args, code=2)
