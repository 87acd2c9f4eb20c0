"""A page about the attention in one text, in one file: every layer and head, one of them large."""

import base64
import html
import json

import numpy as np

from pretrain.scoring.attention import Attention

SCALE = 65535  # probabilities are stored as 16-bit integers
TITLES = {
    "self": "self-attention",
    "encoder": "encoder",
    "decoder": "decoder",
    "cross": "cross-attention (decoder to encoder)",
}
STYLE = """body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5em; color: #222 } h1 { font-size: 1.3em }
button { font: inherit; margin-right: .5em } button.on { background: #3266ad; color: #fff } .note { color: #666 }
.row { display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start } table { border-collapse: collapse }
th { font-weight: normal; color: #666; padding: 1px 4px } td { padding: 1px } canvas { display: block }
#heads canvas { width: 56px; height: 56px; cursor: pointer; border: 2px solid #eee }
#heads canvas.on { border-color: #d1495b }
.numbers td { text-align: right; padding: 1px 5px; cursor: pointer; font-variant-numeric: tabular-nums }
.numbers td.on { outline: 2px solid #d1495b } #large, #lines { overflow: auto; max-width: 100% }
svg text { font-size: 12px }"""
BODY = """<div id="kinds"></div>
<p class="note">One picture a head, layers from top to bottom: a row is a token that attends, a column one attended to.
Click a head to see it large.</p>
<div class="row"><div id="heads"></div><div id="numbers"></div></div>
<h2 id="which"></h2><p id="value" class="note">Point at a cell or a token.</p>
<div class="row"><div id="large"></div><div id="lines"></div></div>"""
SCRIPT = """
const $ = id => document.getElementById(id), INK = [50, 102, 173];
let kind, layer = 0, head = 0, weights;
function unpack(part) {
  const bytes = Uint8Array.from(atob(part.data), c => c.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}
function of(part, l, h) {
  const size = part.T * part.S, at = (l * part.N + h) * size;
  return weights.subarray(at, at + size);
}
function element(parent, name, text) {
  const made = parent.appendChild(document.createElement(name));
  if (text !== undefined) made.textContent = text;
  return made;
}
function draw(canvas, part, l, h) {
  canvas.width = part.S; canvas.height = part.T;
  const values = of(part, l, h), context = canvas.getContext('2d'), image = context.createImageData(part.S, part.T);
  for (let i = 0; i < values.length; i++) {
    // The square root shows small probabilities, too.
    const share = Math.sqrt(values[i] / SCALE);
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = 255 - share * (255 - INK[c]);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.style.imageRendering = 'pixelated';
}
function grid(parent, part, cell) {
  const table = element(parent, 'table'), top = element(table, 'tr');
  element(top, 'th');
  for (let h = 0; h < part.N; h++) element(top, 'th', h + 1);
  for (let l = 0; l < part.L; l++) {
    const row = element(table, 'tr');
    element(row, 'th', l + 1);
    for (let h = 0; h < part.N; h++) {
      const made = cell(element(row, 'td'), l, h);
      made.dataset.head = l + '.' + h;
      made.onclick = () => choose(l, h);
    }
  }
  return table;
}
function numbers(part, name, title) {
  element($('numbers'), 'h3', title);
  const flat = part[name].flat(), most = Math.max(...flat, 1e-9);
  grid($('numbers'), part, (td, l, h) => {
    td.textContent = part[name][l][h].toFixed(2);
    td.style.background = `rgba(201, 138, 27, ${(0.7 * part[name][l][h] / most).toFixed(3)})`;
    return td;
  }).className = 'numbers';
}
function show(name) {
  kind = name;
  const part = DATA[kind];
  weights = unpack(part);
  for (const one of $('kinds').children) one.className = one.dataset.kind === kind ? 'on' : '';
  $('heads').replaceChildren(); $('numbers').replaceChildren();
  grid($('heads'), part, (td, l, h) => { const made = element(td, 'canvas'); draw(made, part, l, h); return made; });
  numbers(part, 'entropy', 'entropy (nats)');
  if (part.distance) numbers(part, 'distance', 'mean distance (tokens)');
  choose(Math.min(layer, part.L - 1), Math.min(head, part.N - 1));
}
function choose(l, h) {
  layer = l; head = h;
  const part = DATA[kind];
  const mark = one => one.classList.toggle('on', one.dataset.head === l + '.' + h);
  document.querySelectorAll('[data-head]').forEach(mark);
  let title = `${part.title}, layer ${l + 1}, head ${h + 1}: entropy ${part.entropy[l][h].toFixed(2)} nats`;
  if (part.distance) title += `, mean distance ${part.distance[l][h].toFixed(1)}`;
  $('which').textContent = title;
  matrix(part, of(part, l, h)); lines(part, of(part, l, h));
}
function svg(parent, name, attributes, text) {
  const made = parent.appendChild(document.createElementNS('http://www.w3.org/2000/svg', name));
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function label(text) {
  const shown = text.replace(/\\s/g, '\\u00b7');
  return shown.length > 14 ? shown.slice(0, 13) + '\\u2026' : shown;
}
function say(part, values, i, j) {
  const percent = (100 * values[i * part.S + j] / SCALE).toFixed(2);
  $('value').textContent = `${part.queries[i]} \\u2192 ${part.keys[j]}: ${percent} %`;
}
function matrix(part, values) {
  $('large').replaceChildren();
  const size = Math.max(8, Math.min(22, 640 / Math.max(part.T, part.S))), left = 110, top = 110;
  const all = svg($('large'), 'svg', {width: left + part.S * size + 60, height: top + part.T * size + 4});
  const every = Math.ceil(11 / size);
  part.keys.forEach((token, j) => {
    const transform = `translate(${left + (j + 0.7) * size}, ${top - 6}) rotate(-55)`;
    if (j % every === 0) svg(all, 'text', {transform}, label(token));
  });
  part.queries.forEach((token, i) => {
    const place = {x: left - 6, y: top + (i + 0.75) * size, 'text-anchor': 'end'};
    if (i % every === 0) svg(all, 'text', place, label(token));
  });
  for (let i = 0; i < part.T; i++) for (let j = 0; j < part.S; j++) {
    const share = values[i * part.S + j] / SCALE;
    const place = {x: left + j * size, y: top + i * size, width: size, height: size};
    const paint = {fill: '#3266ad', 'fill-opacity': Math.sqrt(share).toFixed(3), stroke: '#eee', 'stroke-width': 0.5};
    const cell = svg(all, 'rect', {...place, ...paint});
    cell.onmouseenter = () => say(part, values, i, j);
  }
}
function lines(part, values) {
  $('lines').replaceChildren();
  const step = 18, width = 420, y = i => 16 + i * step;
  const all = svg($('lines'), 'svg', {width, height: 8 + step * Math.max(part.T, part.S)}), drawn = [];
  for (let i = 0; i < part.T; i++) for (let j = 0; j < part.S; j++) {
    const share = values[i * part.S + j] / SCALE;
    if (share < 0.02) continue;
    const place = {x1: 130, x2: width - 130, y1: y(i) - 4, y2: y(j) - 4};
    const paint = {stroke: '#d1495b', 'stroke-width': 2, 'stroke-opacity': share.toFixed(3)};
    drawn.push([i, svg(all, 'line', {...place, ...paint})]);
  }
  const shown = (i, which) => which === null || which === i ? '' : 'none';
  const only = which => drawn.forEach(([i, line]) => { line.style.display = shown(i, which); });
  part.queries.forEach((token, i) => {
    const text = svg(all, 'text', {x: 126, y: y(i), 'text-anchor': 'end', style: 'cursor: pointer'}, label(token));
    text.onmouseenter = () => {
      only(i);
      const row = Array.from(values.subarray(i * part.S, (i + 1) * part.S)), best = row.indexOf(Math.max(...row));
      say(part, values, i, best);
    };
    text.onmouseleave = () => only(null);
  });
  part.keys.forEach((token, j) => svg(all, 'text', {x: width - 126, y: y(j)}, label(token)));
}
for (const name in DATA) {
  const made = element($('kinds'), 'button', DATA[name].title);
  made.dataset.kind = name;
  made.onclick = () => show(name);
}
show(Object.keys(DATA).at(-1));
"""


def render(attention: Attention, title: str) -> str:
    """The page as HTML; it needs no other file."""
    parts = {kind: _part(attention, kind) for kind in attention.weights}
    # No "</" in the data, which could end the script.
    data = json.dumps(parts, ensure_ascii=False).replace("</", "<\\/")
    title = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{BODY}\n"
        f"<script>\nconst SCALE = {SCALE}, DATA = {data};{SCRIPT}</script></body></html>\n"
    )


def _part(attention: Attention, kind: str) -> dict:
    """Data of one kind of attention for the script."""
    weights, (queries, keys) = attention.weights[kind], attention.sides(kind)
    part = dict(zip("LNTS", weights.shape, strict=True)) | {"title": TITLES[kind], "queries": queries, "keys": keys}
    part["entropy"] = attention.entropy(kind).round(4).tolist()
    # Places in two texts have no distance.
    part["distance"] = None if kind == "cross" else attention.distance(kind).round(4).tolist()
    part["data"] = base64.b64encode(np.round(weights * SCALE).astype("<u2").tobytes()).decode("ascii")
    return part
