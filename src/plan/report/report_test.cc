#include "plan/report/report.h"

#include <algorithm>
#include <limits>
#include <regex>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/report/facts.h"
#include "plan/report/format.h"

namespace flambeau::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = 1 << 20;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An 8B model on 16 chips that fits; figures are of the right size, not of a compiler.
Report fitting() {
  Report r;
  r.config = "configs/llama3/8b.toml";
  r.model = "llama3 8B";
  r.pod = "v5e:4x4 (16 chips)";
  r.device_kind = "TPU v5 lite";
  r.source = "libtpu, first phase";
  r.devices = r.chips = 16;
  r.mesh = {{"shard", 16}};
  r.parameters = 8030261248;
  r.tokens_per_step = 131072;
  r.sequences_per_device = 1;
  r.context = 8192;
  r.activation_checkpoint = "full";
  r.attention = "flash, blocks of 512 x 1,024";
  r.memory.total = 13085 * kMiB;
  r.memory.limit = 16128 * kMiB;
  r.memory.by_kind = {{MemoryKind::Parameters, 1915 * kMiB},       {MemoryKind::OptimizerStates, 3829 * kMiB},
                      {MemoryKind::Batch, 1 * kMiB / 16},          {MemoryKind::Gradients, 1915 * kMiB},
                      {MemoryKind::SavedActivations, 2048 * kMiB}, {MemoryKind::Temporaries, 2560 * kMiB},
                      {MemoryKind::Collectives, 704 * kMiB},       {MemoryKind::Padding, 114 * kMiB - kMiB / 16}};
  r.memory.largest = {
      {"activations of layers", MemoryKind::SavedActivations, "bf16[32,1,8192,4096]", 2048 * kMiB, 0, true},
      {"logits", MemoryKind::Temporaries, "f32[1,2048,128256]", 1002 * kMiB, 2 * kMiB, false},
      {"layers.*.feed_forward.{w1,w3}.weight, exp_avg", MemoryKind::OptimizerStates, "f32[32,2,14336,256]", 896 * kMiB, 0, true},
      {"layers.*.feed_forward.{w1,w3}.weight, exp_avg_sq", MemoryKind::OptimizerStates, "f32[32,2,14336,256]", 896 * kMiB, 0,
       true}};
  r.memory.over_step = {{0, 5744 * kMiB},    {0.1, 6000 * kMiB},  {0.35, 9000 * kMiB}, {0.45, 11000 * kMiB},
                        {0.5, 13085 * kMiB}, {0.6, 11500 * kMiB}, {0.8, 9700 * kMiB},  {0.95, 7700 * kMiB}};
  r.collectives = {{"all-gather", "shard", 16, "bf16", "layers, forward", 192, 14.2 * 1024 * kMiB, 13.5 * 1024 * kMiB},
                   {"all-gather", "shard", 16, "bf16", "layers, backward", 192, 14.2 * 1024 * kMiB, 12.8 * 1024 * kMiB},
                   {"reduce-scatter", "shard", 16, "f32", "layers, backward", 192, 26.0 * 1024 * kMiB, 22.1 * 1024 * kMiB},
                   {"all-reduce", "shard", 16, "f32", "outside of the layers", 3, 12, 0}};
  r.work = {.flops = 5.42e14, .hbm_bytes = 7.1e11, .collective_bytes = 54.4 * 1024 * kMiB};
  r.model_flops = 4.5e14;
  r.model_flops_causal = 4.21e14;
  r.peak_flops = 1.97e14;
  r.estimate = {
      .compute_s = 2.751,
      .hbm_s = 0.867,
      .communication_s = 0.54,
      .exposed_s = 0.061,
      .step_s = 3.02,
      .assumptions = {
          "A chip multiplies 197 TFLOP a second in bfloat16 and moves 819 GB a second.",
          "A ring over 16 chips sends at 45 GB a second in each direction; collectives in a loop overlap with the products "
          "beside them."}};
  r.planned_s = 9.4;
  return r;
}

// Without checkpointing, it does not.
Report too_large() {
  Report r = fitting();
  r.activation_checkpoint = "none";
  r.memory.total = 24105 * kMiB;
  r.memory.by_kind[4].second = 13068 * kMiB;
  r.memory.over_step.clear();
  r.memory.largest.resize(1);
  r.collectives.resize(1);
  r.price_per_chip_hour = 1.2;
  r.training_tokens = 15e12;
  r.changes = {
      {{{"activation_checkpoint.mode", "\"full\""}}, 13085 * kMiB, 3.02, true, ""},
      {{{"training.local_batch_size", "1"}, {"training.accumulation", "2"}}, 18000 * kMiB, 3.1, false, ""},
      {{{"parallelism.tensor", "16"}}, 0, 0, false, "8 key-value heads do not divide over 16 devices"}};
  r.warnings = {
      "the links of v5e:4x4 do not wrap around, so that a collective over one of its dimensions takes twice the time of a "
      "ring"};
  return r;
}

// What planners should not make but reports must survive.
std::vector<std::pair<std::string, Report>> odd_reports() {
  std::vector<std::pair<std::string, Report>> odd;
  odd.emplace_back("empty", Report{});
  Report r = fitting();
  r.memory = {};
  r.collectives.clear();
  r.devices = r.chips = 1;
  r.mesh.clear();
  odd.emplace_back("one device, nothing known", r);

  r = fitting();
  r.estimate = {kNan, kInfinity, -1, kNan, kNan, kNan, {std::string(500, 'a')}};
  r.work = {kInfinity, kNan, -5};
  r.model_flops = r.model_flops_causal = r.peak_flops = kNan;
  r.training_tokens = kInfinity;
  r.price_per_chip_hour = kNan;
  r.planned_s = kNan;
  r.memory.over_step = {{kNan, 5}, {-3, 7}, {9, 1}};
  for (auto& c : r.collectives) c.count = c.bytes = c.overlapped = kNan;
  odd.emplace_back("no numbers", r);

  r = too_large();
  r.exact = false;
  const std::string name = "layers." + std::string(200, 'n') + ".weight";
  r.config = r.model = r.pod = r.device_kind = r.source = r.activation_checkpoint = r.attention = name;
  r.mesh = {{name, 3}, {name, 5}};
  r.memory.largest.assign(10, {name, MemoryKind::OptimizerStates, name, 5, 9, true});
  r.collectives.assign(40, {name, name, 1, name, name, 1e30, 1e30, 2e30});
  for (Change& change : r.changes) change.keys = {{name, name}};
  r.changes.back().failure = name;
  r.warnings.assign(3, name);
  odd.emplace_back("long names", r);

  r = too_large();
  r.model = "<script>alert('x')</script>\"&\033[31m\xff\xc3";
  r.memory.largest[0].name =
      "a]]>\n\t\xe2\x80\xae\xed\xa0\x80<!-- "
      "\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4";
  r.config = r.attention = r.collectives[0].axes = r.changes[0].keys[0].second = r.warnings[0] = r.mesh[0].name =
      r.memory.largest[0].name;
  r.estimate.assumptions[0] = r.changes[2].failure = r.memory.largest[0].shape = r.model;
  odd.emplace_back("hostile names", r);

  r = too_large();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  r.devices = r.chips = 1000000;
  r.slices = r.parameters = r.tokens_per_step = r.sequences_per_device = r.context = r.accumulation = kMost;
  r.memory.total = r.memory.host = r.changes[0].total = r.memory.largest[0].bytes = kMost;
  r.memory.limit = 1;
  r.memory.by_kind = {{MemoryKind::Parameters, kMost}, {MemoryKind::Padding, -kMost}};
  r.estimate.step_s = 1e300;
  r.training_tokens = 1e300;
  r.price_per_chip_hour = 1e300;
  odd.emplace_back("very large", r);
  return odd;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string without(std::string text, std::string_view what, std::string_view instead) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += instead.size())
    text.replace(at, what.size(), instead);
  return text;
}

// What is wrong with `text` as XML (apart from its document type), or nothing: tags that do not match, attributes without
// quotes or given twice, stray markup.
std::string fault_of_markup(std::string_view text) {
  std::vector<std::string> open;
  const std::string_view kDoctype = "<!DOCTYPE html>\n";
  if (!text.starts_with(kDoctype)) return "no document type";
  for (size_t at = kDoctype.size(); at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      const std::string_view name = text.substr(at, end == std::string_view::npos ? end : end - at + 1);
      if (name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&quot;" && name != "&#39;")
        return "entity " + std::string(name.substr(0, 20));
    }
    if (text[at] == '>') return "stray '>' before " + std::string(text.substr(at, 40));
    if (text[at++] != '<') continue;
    const bool closes = text[at] == '/';
    at += closes;
    const auto name_end = [&](size_t from) {
      return text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-", from);
    };
    const std::string name(text.substr(at, name_end(at) - at));
    at += name.size();
    if (name.empty()) return "a tag without a name";
    std::vector<std::string> attributes;
    while (at < text.size() && text[at] == ' ') {
      const size_t end = name_end(++at);
      attributes.emplace_back(text.substr(at, end - at));
      if (std::ranges::count(attributes, attributes.back()) > 1 || text.substr(end, 2) != "=\"")
        return "attribute " + attributes.back();
      const size_t quote = text.find('"', end + 2);
      if (quote == std::string_view::npos || text.substr(end + 2, quote - end - 2).find('<') != std::string_view::npos)
        return "value of " + attributes.back();
      at = quote + 1;
    }
    const bool alone = text[at] == '/';
    at += alone;
    if (at >= text.size() || text[at++] != '>') return "end of " + name;
    if (closes) {
      if (open.empty() || open.back() != name) return fmt::format("</{}> after <{}>", name, open.empty() ? "" : open.back());
      open.pop_back();
    } else if (!alone) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "open " + open.back();
}

TEST(ReportText, Fits) {
  EXPECT_EQ(to_text(fitting(), false),
            R"text(fits: 12.78 of 15.75 GiB HBM (81.1%); estimate: 3.020 s, MFU 75.6%, 2,713 tokens/s/chip

Planned
  config         configs/llama3/8b.toml
  model          llama3 8B, 8,030,261,248 parameters
  pod            v5e:4x4 (16 chips), TPU v5 lite
  mesh           shard 16 (16 devices)
  step           131,072 tokens: 1 sequence of 8,192 a device
  checkpointing  full
  attention      flash, blocks of 512 x 1,024
  source         libtpu, first phase; planned in 9.400 s

HBM a device, when most is in use
  kind                  GiB  of limit
  parameters           1.87     11.9%  ████▊
  optimizer states     3.74     23.7%  █████████▌
  batch               <0.01      0.0%  ▏
  gradients            1.87     11.9%  ████▊
  saved activations    2.00     12.7%  █████▏
  temporaries          2.50     15.9%  ██████▍
  collective buffers   0.69      4.4%  █▊
  padding              0.11      0.7%  ▎
  total               12.78     81.1%
  limit               15.75    100.0%

Largest buffers: 4.73 GiB together
   GiB  peak  kind               shape                 name
  2.00  yes   saved activations  bf16[32,1,8192,4096]  activations of layers
  0.98  no    temporaries        f32[1,2048,128256]    logits
  0.88  yes   optimizer states   f32[32,2,14336,256]   layers.*.feed_forward.{w1,w3}.weight, exp_avg
  0.88  yes   optimizer states   f32[32,2,14336,256]   layers.*.feed_forward...3}.weight, exp_avg_sq

HBM over the step: 5.61 to 12.78 GiB, most at 50.0% of the schedule
  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▄▄▄▄▄▄▄▄▄▄▆▆▆▆▆█████████▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▃▃▃▃▃

Collectives of one device in a step
  kind            axes        type  where                  times    GiB  overlapped
  reduce-scatter  shard (16)  f32   layers, backward         192  26.00       85.0%
  all-gather      shard (16)  bf16  layers, forward          192  14.20       95.1%
  all-gather      shard (16)  bf16  layers, backward         192  14.20       90.1%
  all-reduce      shard (16)  f32   outside of the layers      3  <0.01        0.0%
  total                                                      579  54.40       89.0%

Step time: an estimate, nothing here was measured
  estimate                            s  of step
  compute: matrix products        2.751    91.1%  ████████████████████████████████████▍
  exposed memory traffic          0.208     6.9%  ██▊
  exposed communication           0.061     2.0%  ▊
  step                            3.020   100.0%
  at least, by FLOPs / peak       2.751    91.1%
  at least, by bytes / bandwidth  0.867    28.7%
  all communication, alone        0.540    17.9%
  one device   542.0 TFLOP, 661.24 GiB of HBM traffic, 54.40 GiB of collectives; peak 197.0 TFLOP/s
  model FLOPs  421.0 TFLOP causal, 77.7% of those done
  MFU          75.6% (causal 70.8%)

Assumptions
  - A chip multiplies 197 TFLOP a second in bfloat16 and moves 819 GB a second.
  - A ring over 16 chips sends at 45 GB a second in each direction; collectives in a loop overlap
    with the products beside them.
)text");
}

TEST(ReportText, DoesNotFit) {
  EXPECT_EQ(to_text(too_large(), false),
            R"text(does not fit: 23.54 of 15.75 GiB HBM (149.5%); estimate: 3.020 s, MFU 75.6%, 2,713 tokens/s/chip

Planned
  config         configs/llama3/8b.toml
  model          llama3 8B, 8,030,261,248 parameters
  pod            v5e:4x4 (16 chips), TPU v5 lite
  mesh           shard 16 (16 devices)
  step           131,072 tokens: 1 sequence of 8,192 a device
  checkpointing  none
  attention      flash, blocks of 512 x 1,024
  source         libtpu, first phase; planned in 9.400 s

HBM a device, when most is in use
  kind                  GiB  of limit
  parameters           1.87     11.9%  ███▏
  optimizer states     3.74     23.7%  ██████▍
  batch               <0.01      0.0%  ▏
  gradients            1.87     11.9%  ███▏
  saved activations   12.76     81.0%  █████████████████████▋
  temporaries          2.50     15.9%  ████▎
  collective buffers   0.69      4.4%  █▏
  padding              0.11      0.7%  ▎
  total               23.54    149.5%
  limit               15.75    100.0%

Largest buffers: 2.00 GiB together, all in use at the peak
   GiB  kind               shape                 name
  2.00  saved activations  bf16[32,1,8192,4096]  activations of layers

Collectives of one device in a step
  kind        axes        type  where            times    GiB  overlapped
  all-gather  shard (16)  bf16  layers, forward    192  14.20       95.1%

Step time: an estimate, nothing here was measured
  estimate                            s  of step
  compute: matrix products        2.751    91.1%  ████████████████████████████████████▍
  exposed memory traffic          0.208     6.9%  ██▊
  exposed communication           0.061     2.0%  ▊
  step                            3.020   100.0%
  at least, by FLOPs / peak       2.751    91.1%
  at least, by bytes / bandwidth  0.867    28.7%
  all communication, alone        0.540    17.9%
  one device   542.0 TFLOP, 661.24 GiB of HBM traffic, 54.40 GiB of collectives; peak 197.0 TFLOP/s
  model FLOPs  421.0 TFLOP causal, 77.7% of those done
  MFU          75.6% (causal 70.8%)

Assumptions
  - A chip multiplies 197 TFLOP a second in bfloat16 and moves 819 GB a second.
  - A ring over 16 chips sends at 45 GB a second in each direction; collectives in a loop overlap
    with the products beside them.

Days and price: estimates
  15.0 T tokens  4,000 days
  price          1,843,262 (16 chips at 1.20 an hour each)

What would make it smaller, each compiled
  change                               HBM GiB  saves  step estimate  result
  activation_checkpoint.mode = "full"    12.78  10.76        3.020 s  fits
  training.local_batch_size = 1          17.58   5.96        3.100 s  does not fit
  + training.accumulation = 2
  parallelism.tensor = 16                                             failed
  - failed, parallelism.tensor = 16: 8 key-value heads do not divide over 16 devices

warning: the links of v5e:4x4 do not wrap around, so that a collective over one of its dimensions
         takes twice the time of a ring
)text");
}

TEST(ReportText, OddReportsStayReadable) {
  for (const auto& [name, report] : odd_reports()) {
    SCOPED_TRACE(name);
    const std::string text = to_text(report, false);
    for (const std::string& line : lines_of(text)) EXPECT_LE(width_of(line), 100) << line;
    EXPECT_EQ(clean(text), without(text, "\n", " ")) << "control characters or invalid UTF-8";
    EXPECT_THAT(text, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf ")), testing::EndsWith("\n")));
    // Colour changes nothing else.
    EXPECT_EQ(std::regex_replace(to_text(report, true), std::regex("\033\\[[0-9;]+m"), ""), text);
  }
}

TEST(ReportText, SaysWhatIsNotKnown) {
  const auto odd = odd_reports();
  EXPECT_THAT(to_text(odd[0].second, false),
              HasSubstr("limit not known: 0 B HBM; estimate: unknown, MFU unknown, unknown tokens/s/chip\n"));
  EXPECT_THAT(to_text(odd[1].second, false),
              AllOf(HasSubstr("none (1 device)"), HasSubstr("in a step: none\n"), Not(HasSubstr("over the step"))));
  EXPECT_THAT(to_text(odd[3].second, false), AllOf(HasSubstr("17 others"), HasSubstr("warning: the program has loops")));
  Report analytic = too_large();
  analytic.source = "analytic";
  EXPECT_THAT(to_text(analytic, false), HasSubstr("each computed by the analytic mode"));
  Report hourly = fitting();
  hourly.price_per_chip_hour = 1.2;
  // 10^9 / (2,712.6 * 3600) * 1.2
  EXPECT_THAT(to_text(hourly, false), HasSubstr("price of a billion tokens  123 (16 chips at 1.20 an hour each)"));
  EXPECT_THAT(to_text(fitting(), true), testing::StartsWith("\033[1;32mfits\033[0m: "));
  EXPECT_THAT(to_text(too_large(), true),
              AllOf(testing::StartsWith("\033[1;31mdoes not fit\033[0m: "), HasSubstr("\033[33mwarning:\033[0m")));
}

TEST(ReportJson, HoldsTheNumbers) {
  const Report report = too_large();
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["fits"], false);
  EXPECT_DOUBLE_EQ(json["mfu"], 4.5e14 / (3.02 * 1.97e14));
  EXPECT_DOUBLE_EQ(json["mfu_causal"], 4.21e14 / (3.02 * 1.97e14));
  EXPECT_DOUBLE_EQ(json["tokens_per_second_per_chip"], 131072 / 3.02 / 16);
  EXPECT_DOUBLE_EQ(json["days"], 15e12 / 131072 * 3.02 / 86400);
  EXPECT_DOUBLE_EQ(json["price"], json["days"].get<double>() * 24 * 16 * 1.2);
  EXPECT_EQ(json["mesh"]["shard"], 16);
  EXPECT_EQ(json["memory"]["total"], 24105 * kMiB);
  EXPECT_EQ(json["memory"]["by_kind"]["saved_activations"], 13068 * kMiB);
  int64_t sum = 0;
  for (const auto& kind : json["memory"]["by_kind"]) sum += kind.get<int64_t>();
  EXPECT_EQ(sum, report.memory.total);
  EXPECT_EQ(json["memory"]["largest"][0]["kind"], "saved_activations");
  EXPECT_EQ(json["collectives"][0]["count"], 192);
  EXPECT_EQ(json["work"]["flops"], 5.42e14);
  EXPECT_EQ(json["estimate"]["exposed_s"], 0.061);
  EXPECT_EQ(json["changes"][1]["keys"]["training.accumulation"], "2");
  EXPECT_EQ(json["changes"][2]["failure"], report.changes[2].failure);
  EXPECT_EQ(json["warnings"][0], report.warnings[0]);
  const auto fits = nlohmann::json::parse(to_json(fitting()));
  EXPECT_EQ(fits["fits"], true);
  EXPECT_EQ(fits["memory"]["over_step"][4], (nlohmann::json{0.5, 13085 * kMiB}));
  for (const char* key : {"days", "price", "price_per_chip_hour"}) EXPECT_TRUE(fits.at(key).is_null()) << key;
}

TEST(ReportJson, OddReportsParse) {
  const auto all = nlohmann::json::parse(to_json(fitting()));
  for (const auto& [name, report] : odd_reports()) {
    SCOPED_TRACE(name);
    const auto json = nlohmann::json::parse(to_json(report));
    for (const auto& item : all.items()) EXPECT_TRUE(json.contains(item.key())) << item.key();
  }
  const auto unknown = nlohmann::json::parse(to_json(odd_reports()[2].second));
  for (const char* key : {"mfu", "mfu_causal", "tokens_per_second_per_chip", "days", "price"}) EXPECT_TRUE(unknown[key].is_null()) << key;
  EXPECT_TRUE(unknown["estimate"]["step_s"].is_null());
}

TEST(ReportHtml, IsWellFormedAndAlone) {
  auto reports = odd_reports();
  reports.emplace_back("fits", fitting());
  reports.emplace_back("too large", too_large());
  for (const auto& [name, report] : reports) {
    SCOPED_TRACE(name);
    const std::string page = to_html(report);
    EXPECT_EQ(fault_of_markup(page), "");
    // Nothing comes from elsewhere, and nothing of a name becomes markup.
    EXPECT_THAT(page, AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr("url(")),
                            Not(HasSubstr("<!--")), Not(HasSubstr("nan")), Not(HasSubstr("inf%"))));
    EXPECT_EQ(clean(page), without(page, "\n", " "));
  }
  for (const char* wrong :
       {"<p>", "</p>", "<p></b>", "<p a=b></p>", "<p>&lt</p>", "<p a=\"1\" a=\"2\"></p>", "<p>></p>", "<p", "<>"}) {
    EXPECT_NE(fault_of_markup(std::string("<!DOCTYPE html>\n") + wrong), "") << wrong;
  }
}

TEST(ReportHtml, ShowsTheNumbers) {
  EXPECT_THAT(to_html(fitting()),
              AllOf(HasSubstr("<span class=\"fits\">Fits</span>: 12.78 of 15.75 GiB HBM (81.1%)"),
                    HasSubstr("2.97 GiB left"), HasSubstr("limit 15.75 GiB"), HasSubstr("HBM in use over the step"),
                    HasSubstr("reduce-scatter over shard (16)"), HasSubstr("<code>bf16[32,1,8192,4096]</code>")));
  EXPECT_THAT(to_html(too_large()),
              AllOf(HasSubstr("<span class=\"not\">Does not fit</span>: 23.54"), HasSubstr("7.79 GiB beyond the limit"),
                    HasSubstr("<code>training.accumulation = 2</code>"), HasSubstr("8 key-value heads"),
                    HasSubstr("4,000 days"), HasSubstr("1,843,262"), HasSubstr("<b>Warning</b> the links")));
  const std::string hostile = to_html(odd_reports()[4].second);
  EXPECT_THAT(hostile, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\xEF\xBF\xBD[31m"));
  // Many samples make no large page.
  Report many = fitting();
  many.memory.over_step.clear();
  for (int i = 0; i < 200000; ++i) many.memory.over_step.emplace_back(i / 200000.0, i);
  EXPECT_LT(to_html(many).size(), 100000);
}

TEST(ReportFacts, ResamplesByTheMostInUse) {
  const std::vector<std::pair<double, int64_t>> samples = {{0, 4}, {0.3, 9}, {0.32, 2}, {0.8, 5}, {1, 3}};
  EXPECT_THAT(resampled(samples, 5), testing::ElementsAre(4, 9, 2, 2, 5));
  EXPECT_THAT(resampled(samples, 1), testing::ElementsAre(9));
  EXPECT_THAT(resampled({}, 5), testing::IsEmpty());
}

TEST(Format, Figures) {
  const std::pair<std::string, std::string_view> cases[] = {{format_count(0), "0"},
                                                            {format_count(999.6), "1,000"},
                                                            {format_count(-1234567), "-1,234,567"},
                                                            {format_count(-0.2), "0"},
                                                            {format_bytes(0), "0 B"},
                                                            {format_bytes(1536), "1.5 KiB"},
                                                            {format_bytes(512.0 * kMiB), "512.0 MiB"},
                                                            {format_bytes(1234.5 * 0x1p30), "1,234.50 GiB"},
                                                            {format_bytes(-3.0 * 0x1p30), "-3.00 GiB"},
                                                            {format_bytes(kNan), "unknown"},
                                                            {format_seconds(1.8424), "1.842 s"},
                                                            {format_seconds(0.0123), "12.30 ms"},
                                                            {format_seconds(4.2e-6), "4.20 us"},
                                                            {format_seconds(11400), "3h 10m"},
                                                            {format_seconds(-1), "unknown"},
                                                            {format_seconds(1e300), "1.000e+300 s"},
                                                            {format_percent(0.8394), "83.9%"},
                                                            {format_percent(1234.5), "123,450%"},
                                                            {format_scaled(1.97e14, "FLOP/s"), "197.0 TFLOP/s"},
                                                            {format_scaled(999960, "B"), "1.0 MB"},
                                                            {format_scaled(12, "FLOP"), "12 FLOP"},
                                                            {format_days(0.523), "0.52 days"},
                                                            {format_days(4000.2), "4,000 days"},
                                                            {in_unit(12, byte_unit(0x1p31)), "<0.01"},
                                                            {count_of(1, "chip", "chips"), "1 chip"},
                                                            {count_of(1024, "chip", "chips"), "1,024 chips"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(text, expected);
}

TEST(Format, NamesAreCutByColumnsNotBytes) {
  EXPECT_EQ(clean("a\tb\r\n\x1b[31m\x7f"), "a b  \xEF\xBF\xBD[31m\xEF\xBF\xBD");
  EXPECT_EQ(clean("\xc3\xa9\xe5\xb1\xa4\xf0\x9f\x98\x80"), "\xc3\xa9\xe5\xb1\xa4\xf0\x9f\x98\x80");
  // Overlong, a surrogate, beyond Unicode, cut off: each byte of them is one fault.
  EXPECT_EQ(width_of(clean("\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xe5\xb1")), 2 + 3 + 4 + 2);
  EXPECT_EQ(width_of("\xe5\xb1\xa4"), 2);
  EXPECT_EQ(shorten("layers.attention.weight", 11), "laye...ight");
  EXPECT_EQ(shorten("\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4\xe5\xb1\xa4", 7), "\xe5\xb1\xa4...\xe5\xb1\xa4");
  EXPECT_THAT(wrap("one two threefour", 6), testing::ElementsAre("one", "two", "threef", "our"));
  EXPECT_THAT(wrap("", 6), testing::ElementsAre(""));
  EXPECT_EQ(text_bar(0.5, 3), "█▌");
  EXPECT_EQ(text_bar(1e-9, 3), "▏");
  EXPECT_EQ(text_bar(7, 2), "██");
  EXPECT_EQ(text_bar(kNan, 2), "");
}

}  // namespace
}  // namespace flambeau::plan
