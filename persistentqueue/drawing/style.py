"""The style sheet of the pages that show queues and pipelines, for light and dark screens; it loads nothing."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --dim: #5b6675; --page: #f6f7f9; --card: #fff; --line: #d9dee5;
  --full: #1f8a4c; --most: #2a7f9e; --half: #c58a12; --little: #c8382e; --nothing: #aab2bd; --youngest: #3d66d6;
  --live: #1f8a4c; --dead: #d9776f; --log: #2a7f9e; --spare: #7fb4c6; --inbox: #9a4fb0; --pool: #aab2bd;
  --other: #b98b2d; --urgent: #b3261e; --back: #e8ebef; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #98a3b3; --page: #12161c; --card: #1a2029;
  --line: #2e3744; --full: #3fb871; --most: #4fb0d0; --half: #e0ab3d; --little: #ee6b60; --nothing: #5c6674;
  --youngest: #7d9cf5; --live: #3fb871; --dead: #a8514a; --log: #4fb0d0; --spare: #35667a; --inbox: #c586d6;
  --pool: #5c6674; --other: #d1a94f; --urgent: #ff8a80; --back: #28303b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 1.25rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
main { max-width: 1080px; margin: 0 auto; }
h1 { font-size: 1.45rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 0; }
p { margin: .35rem 0; } .dim { color: var(--dim); } .small { font-size: .86rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.1rem; margin: .9rem 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .9rem; }
.facts b { display: block; font-size: 1.3rem; line-height: 1.25; font-weight: 600; }
ul.todo { list-style: none; margin: .4rem 0 0; padding: 0; }
ul.todo li { padding: .5rem 0 .5rem .9rem; border-left: 3px solid var(--line); margin: .55rem 0; }
ul.todo li.urgent { border-color: var(--urgent); }
ul.todo li.urgent b::before { content: "To do: "; color: var(--urgent); }
ul.todo b { font-weight: 600; display: block; }
.map { display: flex; flex-wrap: wrap; gap: 4px; margin: .7rem 0; }
.map svg { display: block; } .map text { font: 10px system-ui, sans-serif; fill: var(--dim); }
.tile-back { fill: var(--back); } .held { stroke: var(--ink); stroke-width: 2; stroke-dasharray: 3 2; fill: none; }
.below { margin-top: 1rem; }
a { color: var(--most); }
.legend { margin-top: .5rem; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .86rem; color: var(--dim); }
.legend span { display: inline-flex; align-items: center; gap: .4rem; }
.wide { width: 100%; display: block; } .axis { display: flex; justify-content: space-between; gap: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; overflow-wrap: normal; } td.n, th.n { text-align: right; } td.n { white-space: nowrap; }
@media (max-width: 30rem) { body { padding: .8rem; } .card { padding: .8rem; } th, td { padding-right: .4rem; } }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
.full { fill: var(--full); } .most { fill: var(--most); } .half { fill: var(--half); } .little { fill: var(--little); }
.nothing { fill: var(--nothing); } .youngest { fill: var(--youngest); }
.live { fill: var(--live); } .dead { fill: var(--dead); } .log { fill: var(--log); } .spare { fill: var(--spare); }
.inbox { fill: var(--inbox); } .pool { fill: var(--pool); } .age { fill: var(--half); }
figure { margin: .5rem 0 0; min-width: 0; } figcaption.legend { margin: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .2rem 1.5rem; }
h4 { font-size: .9rem; margin: .8rem 0 0; } .map .times { font-weight: 700; fill: var(--ink); }
.depth { fill: var(--youngest); shape-rendering: crispEdges; }
.line-in, .line-out { fill: none; stroke: var(--log); stroke-width: 2; }
.line-out { stroke: var(--half); }
.other { fill: var(--other); } .cached { fill: var(--youngest); }
"""
