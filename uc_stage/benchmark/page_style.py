"""The style of bench's page: light and dark, from the width of a phone on."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5b6676; --line: #dfe3e9;
  --track: #eceff3; --good: #12733f; --bad: #b42318; --none: #3b6fd4; --cold: #3b6fd4; --warm: #e08b27;
  --storage: #4269d0; --decompression: #2f9e9a; --decode: #d99b08; --tensors: #e2594b; --collation: #5f9e4a;
  --transfer: #9457d9; --wait: #e2594b; --first: #7d8796; --other: #2f9e9a; }
@media (prefers-color-scheme: dark) { :root { --ground: #11151b; --card: #1a2029; --ink: #e7ebf0; --soft: #9aa7b8;
  --line: #2d3643; --track: #262e3a; --good: #5fce8d; --bad: #ff8a7e; --none: #6f9cf0; --cold: #6f9cf0; --warm: #f0a650;
  --storage: #7f9cec; --decompression: #4fc0bb; --decode: #efc04a; --tensors: #ff8175; --collation: #86c970;
  --transfer: #b98af0; --wait: #ff8175; --first: #8a96a8; --other: #4fc0bb; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: .95rem; margin: 0 0 .7rem; overflow-wrap: anywhere; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); font-size: .86rem; }
figcaption { margin-top: .7rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; margin: 0;
  min-width: 0; container-type: inline-size; }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 9.25rem), 1fr));
  margin-top: 1.2rem; }
.figures { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.tile b { display: block; font-size: 1.3rem; line-height: 1.3; font-weight: 650; }
.tile span { color: var(--soft); font-size: .86rem; overflow-wrap: anywhere; }
ol.bars, ul { list-style: none; margin: 0; padding: 0; }
li.group { font-weight: 600; font-size: .9rem; margin: .8rem 0 .2rem; }
li.group:first-child { margin-top: 0; }
li.bar { display: grid; grid-template-columns: 1fr auto; gap: 0 .75rem; align-items: center; margin: .3rem 0; }
li.bar .label { overflow-wrap: anywhere; font-size: .88rem; }
li.bar .said { font-variant-numeric: tabular-nums; font-size: .88rem; text-align: right; }
li.bar svg { grid-column: 1 / -1; grid-row: 2; display: block; }
@container (min-width: 36rem) {
  li.bar { grid-template-columns: 12.5rem 1fr 10.5rem; }
  li.bar svg { grid-column: 2; grid-row: 1; }
}
rect.track { fill: var(--track); }
line.reach { stroke: var(--ink); stroke-width: 1.5; opacity: .75; }
ul.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin-top: .7rem; font-size: .86rem; color: var(--soft); }
ul.legend svg { margin-right: .4rem; vertical-align: -1px; }
.scroll { overflow-x: auto; padding: 0; }
.scroll:focus-visible { outline: 2px solid var(--none); }
.scroll + .scroll, .scroll + p { margin-top: .75rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .7rem 1rem .3rem; overflow-wrap: anywhere; }
th, td { padding: .4rem .75rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
tr > :first-child { padding-left: 1rem; }
tr > :last-child { padding-right: 1rem; }
thead th { color: var(--soft); font-weight: 500; border-top: 0; }
tbody th { font-weight: 600; }
th.word, td.word { text-align: left; }
td.long, th.long { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem; margin: 0; font-size: .9rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""

# Each kind of a part of a bar has a colour of its name.
KINDS = (
    "none", "cold", "warm", "storage", "decompression", "decode", "tensors", "collation", "transfer", "wait", "first",
    "other",
)  # fmt: skip
STYLE += "".join(f".{kind} {{ fill: var(--{kind}); }}\n" for kind in KINDS)
