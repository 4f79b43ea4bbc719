// The analytic mode: memory, work and collectives of a planned step without TPU's compiler, from the recorded program alone.
//
// Layouts (propagate.h) say how large a device's part of each value is, the partitioner's rules (partition.h) what is sent,
// and fusion (fusion.h) which values lie in memory; a walk over the program in its recorded order then adds up what is alive.
// Takes milliseconds for any model on any number of devices. What the compiler does beyond that (its order of operations,
// memory lost between buffers, most copies to other layouts) is not in it: docs/planning.md compares the two.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hlo/graph.h"
#include "plan/analytic/propagate.h"
#include "plan/pod/pod.h"
#include "plan/program.h"
#include "plan/report/report.h"
#include "plan/time/timeline.h"

namespace flambeau::plan {

struct AnalyticPlan {
  Memory memory;  // without a limit
  Work work;
  std::vector<CollectiveGroup> collectives;  // most bytes first
  std::vector<AxisSet> axes;                 // of each of them, over the program's mesh
  std::map<std::string, double> flops_at;    // by place, named as in the collectives
};

AnalyticPlan analyze_step(const StepProgram& step, Generation generation);
// `arguments`: of each parameter of the graph.
AnalyticPlan analyze_graph(const hlo::Graph& graph, std::span<const Argument> arguments, int64_t on_chip);

// How long its step may take, and what of its collectives may be hidden, which is filled in. `mesh` is the program's.
Estimate estimate(AnalyticPlan& plan, const std::vector<hlo::MeshAxis>& mesh, const DeviceRates& rates);

}  // namespace flambeau::plan
