#include "plan/report/style.h"

namespace flambeau::plan {

// Kinds of memory, as MemoryKind counts them: what a step keeps (parameters, gradients, optimizer states) in blues and
// violet, what it makes in oranges, what it sends in green, what it wastes in grey. Neighbours differ in lightness as well
// as in hue.
const std::string_view kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #fdfdfc; --ink: #1c2024; --soft: #5c646d; --rule: #dfe2e5; --track: #eef0f2;
  --good: #1a7f4b; --bad: #c0322b; --warn: #8a5a00; --warn-page: #fdf4dc;
  --k0: #2a6fb5; --k1: #8fc1ea; --k2: #5b4fa3; --k3: #c39bd0; --k4: #d97f26; --k5: #f0c35c; --k6: #3b9b80; --k7: #a4abb3;
  --k0-text: #fff; --k1-text: #10202e; --k2-text: #fff; --k3-text: #24102b; --k4-text: #241000; --k5-text: #2b2000;
  --k6-text: #04150f; --k7-text: #15181b;
  --exposed: #cf4b3f; --hidden: #9fcfc0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --ink: #e6e8ea; --soft: #9aa3ac; --rule: #2d3338; --track: #22272b;
    --good: #52c58a; --bad: #f2776d; --warn: #e6b450; --warn-page: #2b2414;
    --k0: #4b92db; --k1: #a9d2f3; --k2: #8b7fd6; --k3: #cfaedb; --k4: #e3924a; --k5: #f1cc74; --k6: #4fb698; --k7: #7f8891;
    --k0-text: #04121f; --k2-text: #0f0a2a;
    --exposed: #ee6f62; --hidden: #33705f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
h1 { font-size: 1.05rem; font-weight: 600; margin: 0; color: var(--soft); overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; font-weight: 650; margin: 2.75rem 0 .35rem; letter-spacing: -.005em; }
h3 { font-size: .95rem; font-weight: 650; margin: 1.5rem 0 .35rem; }
p { margin: .35rem 0 .9rem; max-width: 46rem; }
.note { color: var(--soft); }
table + .note, .scroll + .note { margin-top: .9rem; }
.verdict { font-size: 1.75rem; line-height: 1.25; font-weight: 680; letter-spacing: -.015em; margin: .35rem 0 1.25rem; }
.verdict .fits { color: var(--good); }
.verdict .not { color: var(--bad); }
.verdict .soft { color: var(--soft); font-weight: 450; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0; margin: 0; border: solid var(--rule); border-width: 1px 0; }
.figures div { padding: .7rem 1rem .75rem 0; }
.figures dt { color: var(--soft); font-size: .82rem; }
.figures dd { margin: 0; font-size: 1.3rem; font-weight: 600; letter-spacing: -.01em; overflow-wrap: anywhere; }
.figures small { display: block; font-size: .8rem; font-weight: 400; color: var(--soft); letter-spacing: 0; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.25rem; margin: 1.25rem 0 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.warning { background: var(--warn-page); border-left: 3px solid var(--warn); padding: .5rem .8rem; margin: 1rem 0 0; max-width: none; overflow-wrap: anywhere; }
.warning b { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 0; font-size: .9rem; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .82rem; vertical-align: bottom; white-space: nowrap; }
th, td { padding: .32rem 1.1rem .32rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
tr.sum td { font-weight: 600; }
table.narrow { max-width: 30rem; }
.n { text-align: right; white-space: nowrap; }
td.name { min-width: 16rem; overflow-wrap: anywhere; }
td.line { white-space: nowrap; }
td.good { color: var(--good); font-weight: 600; }
td .bad, td.bad { color: var(--bad); font-weight: 600; }
code { font: .88em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .55rem; vertical-align: -.03rem; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; color: var(--soft); font-size: .85rem; margin: .4rem 0 .6rem; padding: 0; list-style: none; }
ul.points { padding-left: 1.1rem; margin: .35rem 0; max-width: 50rem; }
ul.points li { margin: .25rem 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--rule); color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }

svg.plot { display: block; overflow: visible; margin: .6rem 0; }
svg text { font-size: 12.5px; fill: var(--ink); }
svg .axis, svg.axis text { fill: var(--soft); font-size: 11.5px; }
svg .figure { font-weight: 600; }
svg rect { stroke: var(--page); stroke-width: .75px; }
svg .track { fill: var(--track); stroke: none; }
svg .grid { stroke: var(--rule); stroke-width: 1px; }
svg .limit { stroke: var(--bad); stroke-width: 2px; }
svg .limit-halo { stroke: var(--page); stroke-width: 6px; }
svg .dashed { stroke-dasharray: 6 4; }
svg .limit-text { fill: var(--bad); font-weight: 600; }
svg .soft { fill: var(--soft); }
svg .area { fill: var(--k0); fill-opacity: .2; }
svg .outline { fill: none; stroke: var(--k0); stroke-width: 1.75px; vector-effect: non-scaling-stroke; }
svg .peak { fill: var(--k0); stroke: var(--page); stroke-width: 1.5px; }
svg .halo { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
.with-axis { display: grid; grid-template-columns: 3.4rem minmax(0, 1fr); gap: .6rem; }
.k0 { fill: var(--k0); background: var(--k0); } .k1 { fill: var(--k1); background: var(--k1); }
.k2 { fill: var(--k2); background: var(--k2); } .k3 { fill: var(--k3); background: var(--k3); }
.k4 { fill: var(--k4); background: var(--k4); } .k5 { fill: var(--k5); background: var(--k5); }
.k6 { fill: var(--k6); background: var(--k6); } .k7 { fill: var(--k7); background: var(--k7); }
.compute { fill: var(--k0); background: var(--k0); } .memory { fill: var(--k5); background: var(--k5); }
.exposed { fill: var(--exposed); background: var(--exposed); } .hidden { fill: var(--hidden); background: var(--hidden); }
svg .k0-text { fill: var(--k0-text); } svg .k1-text { fill: var(--k1-text); }
svg .k2-text { fill: var(--k2-text); } svg .k3-text { fill: var(--k3-text); } svg .k4-text { fill: var(--k4-text); }
svg .k5-text { fill: var(--k5-text); } svg .k6-text { fill: var(--k6-text); }
svg .k7-text { fill: var(--k7-text); }

@media (max-width: 44rem) {
  body { padding: 1.25rem 1rem 3rem; }
  .verdict { font-size: 1.35rem; }
  .figures dd { font-size: 1.15rem; }
  .facts { column-gap: .9rem; }
}
@media (max-width: 52rem) { svg .in { display: none; } }
@media print { body { max-width: none; padding: 0; } h2, svg, tr { break-inside: avoid; } }
)css";

}  // namespace flambeau::plan
