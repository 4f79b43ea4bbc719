#include "plan/time/timeline.h"

#include <algorithm>

#include "base/error.h"

namespace flambeau::plan {
namespace {

using compiled::Analysis;
using compiled::Collective;
using compiled::MeshAxes;
using compiled::Operation;

// Seconds on either network. They are different wires: both can be busy at once, one collective uses one after the other.
struct Sending {
  double ici = 0, dcn = 0;
  double seconds() const { return ici + dcn; }
};

bool crosses_slices(const std::string& axis, const DeviceRates& rates) {
  return std::find(rates.dcn_axes.begin(), rates.dcn_axes.end(), axis) != rates.dcn_axes.end();
}

double over(double bytes, double rate, std::string_view what) {
  if (bytes == 0) return 0;
  if (!(rate > 0)) raise<InvalidArgument>("[plan.timeline] expected a positive rate of {}, got {}", what, rate);
  return bytes / rate;
}

// How often (n-1)/n of the bytes cross each device's links.
double passes(std::string_view kind) { return kind == "all-reduce" ? 2 : 1; }

// Among `within` devices of a slice in each of `across` slices; `ici` bytes a second within one.
Sending sending_of(std::string_view kind, double bytes, int64_t within, int64_t across, double ici, const DeviceRates& rates) {
  if (kind == "collective-permute") {
    if (within * across < 2) return {};
    // To a neighbour on one link; what is sent to the one on the other side meanwhile is a collective of its own, and queues behind it.
    const double links = rates.link_bytes > 0 ? std::min(ici, 2 * rates.link_bytes) : ici;
    return across > 1 ? Sending{.dcn = over(bytes, rates.dcn_bytes, "the data-centre network")}
                      : Sending{.ici = over(bytes, links, "ICI")};
  }
  auto fraction = [](int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); };
  const double twice = passes(kind);
  // Within a slice first: each device then has its part of the rest to exchange with the other slices.
  return {.ici = over(twice * bytes * fraction(within), ici, "ICI"),
          .dcn = over(twice * bytes / static_cast<double>(within) * fraction(across), rates.dcn_bytes,
                      "the data-centre network")};
}

double ici_over(const std::vector<size_t>& axes, const DeviceRates& rates) {
  size_t mask = 0;
  for (const size_t axis : axes) mask |= size_t{1} << axis;
  return mask > 0 && mask < rates.ici_bytes_over.size() ? rates.ici_bytes_over[mask] : rates.ici_bytes;
}

std::pair<int64_t, int64_t> extent_of(const std::vector<size_t>& axes, const MeshAxes& mesh, const DeviceRates& rates) {
  int64_t within = 1, across = 1;
  for (const size_t axis : axes) (crosses_slices(mesh[axis].name, rates) ? across : within) *= mesh[axis].size;
  return {within, across};
}

Sending sending_of(const Collective& c, const std::vector<size_t>& axes, const MeshAxes& mesh, const DeviceRates& rates) {
  auto [within, across] = extent_of(axes, mesh, rates);
  if (c.kind == "collective-permute" && c.group_size < 2) return {};
  const auto bytes = static_cast<double>(c.bytes());
  if (c.between_slices) return sending_of(c.kind, bytes, 1, std::max<int64_t>(c.group_size, 1), rates.ici_bytes, rates);
  if (within * across == 1) within = std::max<int64_t>(c.group_size, 1);  // not told: taken as of one slice
  return sending_of(c.kind, bytes, within, across, ici_over(axes, rates), rates);
}

// Copies between HBM and the chip's own memory that are started ahead of use.
bool is_prefetch(const Operation& o) { return o.opcode == "copy-start" || o.opcode == "async-start"; }

class Runner {
 public:
  Runner(const Analysis& analysis, const MeshAxes& mesh, const DeviceRates& rates) : analysis_(analysis), rates_(rates) {
    const size_t n = analysis.collectives.size();
    result_.collectives.resize(n);
    finish_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      result_.collectives[i].axes = axes_of(analysis.collectives[i], mesh);
      sending_.push_back(sending_of(analysis.collectives[i], result_.collectives[i].axes, mesh, rates));
      result_.collectives[i].seconds = sending_[i].seconds();
    }
  }

  Timeline run() {
    result_.step_s = run_part(-1, 0, analysis_.operations.size());
    return std::move(result_);
  }

 private:
  // A loop's body, or the entry: the operations from `first` to before `last` belong to it or to loops inside. Seconds of one
  // iteration.
  double run_part(int loop, size_t first, size_t last) {
    std::vector<size_t> here;  // collectives of this part
    for (size_t c = 0; c < analysis_.collectives.size(); ++c) {
      const Collective& collective = analysis_.collectives[c];
      if (collective.loop == loop && collective.operation >= first && collective.operation < last) here.push_back(c);
    }
    double now = 0, prefetch = 0;
    Sending busy;  // until when
    for (size_t at = first; at < last;) {
      const Operation& o = analysis_.operations[at];
      const int inner = child_of(loop, o.loop);
      size_t next = at + 1;
      if (inner >= 0) {
        while (next < last && child_of(loop, analysis_.operations[next].loop) == inner) ++next;
      }
      wait(here, at, now);
      if (inner >= 0) {
        now += run_part(inner, at, next) * analysis_.loops[static_cast<size_t>(inner)].iterations();
      } else {
        const double before = now;
        now += run_operation(o, begins_asynchronous(here, at), prefetch);
        begin(here, at, before, now, busy);
      }
      at = next;
    }
    for (const size_t c : here) end(c, now);
    return now + prefetch;
  }

  // The loop that stands directly in `loop` and holds `inner`; -1 where inner is loop.
  int child_of(int loop, int inner) const {
    while (inner >= 0 && inner != loop) {
      const int parent = analysis_.loops[static_cast<size_t>(inner)].parent;
      if (parent == loop) return inner;
      inner = parent;
    }
    return -1;
  }

  bool begins_asynchronous(const std::vector<size_t>& here, size_t at) const {
    return std::any_of(here.begin(), here.end(), [&](size_t c) {
      const Collective& collective = analysis_.collectives[c];
      return collective.operation == at && collective.begin > at;
    });
  }

  // Seconds until the next one; `aside`: it only starts something.
  double run_operation(const Operation& o, bool aside, double& prefetch) const {
    const double product = over(o.flops, rates_.flops, "matrix products"), memory = over(o.bytes(), rates_.hbm_bytes, "HBM");
    if (aside || is_prefetch(o)) {
      prefetch += memory;
      return 0;
    }
    prefetch -= std::min(prefetch, std::max(product - memory, 0.0));  // beside products that leave HBM idle
    return std::max(product, memory);
  }

  // Before the operation `at`: what must have ended by then.
  void wait(const std::vector<size_t>& here, size_t at, double& now) {
    for (const size_t c : here) {
      const Collective& collective = analysis_.collectives[c];
      if (collective.end <= at && collective.operation < at) end(c, now);
    }
  }

  // What the operation `at`, which ran from `before` to `now`, begins. A collective streams what it sends from memory.
  void begin(const std::vector<size_t>& here, size_t at, double before, double& now, Sending& busy) {
    for (const size_t c : here) {
      const Collective& collective = analysis_.collectives[c];
      if (collective.operation != at) continue;
      const Sending& needs = sending_[c];
      const double start = std::max({before, needs.ici > 0 ? busy.ici : 0, needs.dcn > 0 ? busy.dcn : 0});
      finish_[c] = start + needs.seconds();
      if (needs.ici > 0) busy.ici = finish_[c];
      if (needs.dcn > 0) busy.dcn = finish_[c];
      if (collective.end > collective.operation) continue;
      // Synchronous: what its own operation moves is what it sends.
      result_.collectives[c].exposed = needs.seconds();
      now = std::max(now, finish_[c]);
    }
  }

  void end(size_t c, double& now) {
    if (finish_[c] > now) {
      // Waiting for others before it is theirs, or was.
      result_.collectives[c].exposed = std::min(finish_[c] - now, result_.collectives[c].seconds);
      now = finish_[c];
    }
  }

  const Analysis& analysis_;
  const DeviceRates& rates_;
  Timeline result_;
  std::vector<Sending> sending_;
  std::vector<double> finish_;
};

}  // namespace

double collective_seconds(const Collective& collective, const MeshAxes& mesh, const DeviceRates& rates) {
  return sending_of(collective, axes_of(collective, mesh), mesh, rates).seconds();
}

double collective_seconds(std::string_view kind, double bytes, const std::vector<size_t>& axes, const MeshAxes& mesh,
                          const DeviceRates& rates) {
  const auto [within, across] = extent_of(axes, mesh, rates);
  return sending_of(kind, bytes, within, across, ici_over(axes, rates), rates).seconds();
}

Timeline run_timeline(const Analysis& analysis, const MeshAxes& mesh, const DeviceRates& rates) {
  return Runner(analysis, mesh, rates).run();
}

}  // namespace flambeau::plan
