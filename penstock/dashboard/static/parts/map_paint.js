// Draws the map on a canvas. Called at most once per animation frame, with everything to show.

import { clip } from "../model/format.js";
import { graticule, scaleBar } from "../model/graticule.js";

const MANY = 1_500; // if there are more points than this, they are drawn small, without a rim
const LABELS_MAX = 60;
const LABELLED_MAX = 400; // if there are more points, none is labelled: the names would hide them
const LABEL_LENGTH = 24;
const FONT = "11px system-ui, sans-serif";
const SHAPES = [circle, square, triangle, diamond];

/** Returns the page's colours for the current theme. */
export function coloursOf(element) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).trim();
  const marks = [1, 2, 3, 4, 5, 6].map((number) => value(`--mark-${number}`));
  const named = Object.fromEntries(["line", "ink", "quiet", "bad"].map((name) => [name, value(`--${name}`)]));
  return { ...named, ground: value("--sunken"), marks };
}

/**
 * `points` and `alerts` are lists of {x, y, row, state, label}, where `label` is a function of the row. `chosen` is one
 * of them, if any.
 */
export function paint(canvas, { size, frame, points, alerts, chosen, colours }) {
  const context = canvas.getContext("2d");
  const density = devicePixelRatio || 1;
  context.setTransform(density, 0, 0, density, 0, 0);
  context.font = FONT;
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, size.width, size.height);
  drawLines(context, frame, size, colours);
  drawLabels(context, points, size, colours);
  drawAlerts(context, alerts, colours);
  drawPoints(context, points, colours);
  if (chosen) ring(context, chosen, colours);
  drawBar(context, frame, size, colours);
}

function drawLines(context, frame, { width, height }, colours) {
  const { across, down } = graticule(frame, { width, height });
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (const { at } of across) line(context, 0, Math.round(at) + 0.5, width, Math.round(at) + 0.5);
  for (const { at } of down) line(context, Math.round(at) + 0.5, 0, Math.round(at) + 0.5, height);
  context.stroke();
  context.fillStyle = colours.quiet;
  context.textBaseline = "bottom";
  context.textAlign = "left";
  for (const { at, text } of across) if (at > 36 && at < height - 30) context.fillText(text, 5, at - 2);
  context.textBaseline = "top";
  for (const { at, text } of down) if (at < width - 60) context.fillText(text, at + 4, 5);
}

function line(context, fromX, fromY, toX, toY) {
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
}

/** All points with the same state form one path, so ten thousand points take only a few milliseconds. The rarest state
 * is drawn last. */
function drawPoints(context, points, colours) {
  const many = points.length > MANY;
  const radius = many ? 2 : 4.5;
  for (const [state, group] of grouped(points)) {
    const shape = many ? square : SHAPES[state % SHAPES.length];
    context.fillStyle = colours.marks[state % colours.marks.length];
    context.beginPath();
    for (const { x, y } of group) shape(context, x, y, radius);
    context.fill();
    if (many) continue;
    context.strokeStyle = colours.ground;
    context.lineWidth = 1;
    context.stroke();
  }
}

function grouped(points) {
  const groups = new Map();
  for (const point of points) {
    const group = groups.get(point.state);
    if (group) group.push(point);
    else groups.set(point.state, [point]);
  }
  return [...groups].sort(([, a], [, b]) => b.length - a.length);
}

function circle(context, x, y, radius) {
  context.moveTo(x + radius, y);
  context.arc(x, y, radius, 0, 2 * Math.PI);
}

function square(context, x, y, radius) {
  context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
}

function triangle(context, x, y, radius) {
  const wide = radius * 1.2;
  context.moveTo(x, y - wide);
  context.lineTo(x + wide, y + radius);
  context.lineTo(x - wide, y + radius);
  context.closePath();
}

function diamond(context, x, y, radius) {
  const wide = radius * 1.3;
  context.moveTo(x, y - wide);
  context.lineTo(x + wide, y);
  context.lineTo(x, y + wide);
  context.lineTo(x - wide, y);
  context.closePath();
}

/** Draws crosses wider than a point, with a rim, so that both the cross and the point below are visible. */
function drawAlerts(context, alerts, colours) {
  context.beginPath();
  for (const { x, y } of alerts) {
    line(context, x - 7, y - 7, x + 7, y + 7);
    line(context, x + 7, y - 7, x - 7, y + 7);
  }
  for (const [width, colour] of [[4, colours.ground], [1.75, colours.bad]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.stroke();
  }
}

/** Draws names beside the points, without overlaps; earlier points take precedence, so that the names do not jump. */
function drawLabels(context, points, { width, height }, colours) {
  if (points.length > LABELLED_MAX) return;
  const taken = [];
  context.textBaseline = "middle";
  context.lineJoin = "round";
  for (const { x, y, row, label } of points) {
    if (taken.length === LABELS_MAX) return;
    const text = clip(label(row), LABEL_LENGTH);
    const wide = context.measureText(text).width;
    const left = x + 8 + wide > width ? x - 8 - wide : x + 8;
    const box = { left, right: left + wide, top: y - 7, bottom: y + 7 };
    const clear = !taken.some((other) => box.left < other.right + 4 && box.right + 4 > other.left
      && box.top < other.bottom && box.bottom > other.top);
    if (!clear || box.top < 0 || box.bottom > height) continue;
    taken.push(box);
    outlined(context, text, left, y, colours);
  }
}

function outlined(context, text, x, y, colours) {
  context.strokeStyle = colours.ground;
  context.lineWidth = 3;
  context.strokeText(text, x, y);
  context.fillStyle = colours.ink;
  context.fillText(text, x, y);
}

function ring(context, { x, y }, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.beginPath();
  circle(context, x, y, 9);
  context.stroke();
}

function drawBar(context, frame, { height }, colours) {
  const { pixels, text } = scaleBar(frame);
  const [left, bottom] = [10, height - 10];
  context.strokeStyle = colours.quiet;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(left, bottom - 5);
  context.lineTo(left, bottom);
  context.lineTo(left + pixels, bottom);
  context.lineTo(left + pixels, bottom - 5);
  context.stroke();
  context.textBaseline = "bottom";
  outlined(context, text, left + 4, bottom - 2, colours);
}
