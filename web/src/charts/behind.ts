// What lies behind smoothed curves: the values themselves, pale.
import type uPlot from "uplot";
import { faded, phaseColour, seriesColour, themeColour } from "../colour";
import type { Curve, Curves, Range } from "./series";

export function colourOf(curve: Curve, index: number, isStack: boolean): string {
  if (curve.colour !== undefined) return curve.colour;
  if (curve.isFaint) return themeColour("muted");
  return isStack ? phaseColour(curve.name, index) : seriesColour(index);
}

/** The range of the values, widened by what lies behind them as far as it is shown. */
export function withRaw(low: number | null, high: number | null, data: Curves, x: string, zoom: Range | null): [number | null, number | null] {
  if (low === null || high === null) return [null, null];
  let range: Range = [low, high];
  const unit = x.endsWith("_ns") ? 1e9 : 1; // zooms are in seconds
  const [first, last] = zoom === null ? [-Infinity, Infinity] : [zoom[0] * unit, zoom[1] * unit];
  for (const one of data.curves) {
    if (!one.isRaw) continue;
    for (const [place, value] of one.values.entries()) {
      if (value === null || value === undefined || (data.x[place] as number) < first || (data.x[place] as number) > last) continue;
      if (value < range[0]) range = [value, range[1]];
      else if (value > range[1]) range = [range[0], value];
    }
  }
  return range;
}

interface Picture {
  key: string;
  values: Curve["values"][];
  image: OffscreenCanvas;
}

const pictures = new WeakMap<uPlot, Picture>();

/** What was smoothed, behind it. It changes with the axes alone, so it is kept as a picture while one smooths. */
export function drawRaw(plot: uPlot, data: Curves, isLog: boolean): void {
  const raw = data.curves.filter((one) => one.isRaw);
  const [x, y] = [plot.scales.x, plot.scales.y];
  if (raw.length === 0 || x?.min == null || x.max == null || y?.min == null || y.max == null) return;
  const hidden = new Set(plot.series.filter((one) => one.show === false).map((one) => String(one.label)));
  const { ctx, bbox } = plot;
  const key = JSON.stringify([x.min, x.max, y.min, y.max, isLog, bbox, themeColour("ink"), [...hidden]]);
  const known = pictures.get(plot);
  const isKnown = known !== undefined && known.key === key && known.values.length === raw.length && raw.every((one, index) => one.values === known.values[index]);
  const image = isKnown ? known.image : painted(plot, raw, isLog, hidden);
  if (!isKnown) pictures.set(plot, { key, values: raw.map((one) => one.values), image });
  ctx.drawImage(image, bbox.left, bbox.top);
}

function painted(plot: uPlot, raw: Curve[], isLog: boolean, hidden: Set<string>): OffscreenCanvas {
  const { bbox, scales } = plot;
  const [from, to] = [scales.x?.min ?? 0, scales.x?.max ?? 1];
  const bend = isLog ? Math.log : (value: number): number => value;
  const [foot, head] = [bend(scales.y?.min ?? 0), bend(scales.y?.max ?? 1)];
  const [right, up] = [bbox.width / (to - from), bbox.height / (head - foot)];
  const image = new OffscreenCanvas(Math.max(1, Math.round(bbox.width)), Math.max(1, Math.round(bbox.height)));
  const ctx = image.getContext("2d");
  if (ctx === null) return image;
  ctx.lineWidth = devicePixelRatio;
  ctx.lineJoin = "bevel";
  const places = plot.data[0];
  raw.forEach((one, index) => {
    if (hidden.has(one.name)) return;
    ctx.strokeStyle = faded(colourOf(one, index, false), 0.35);
    ctx.beginPath();
    let isDown = false;
    for (let row = 0; row < places.length; row += 1) {
      const value = one.values[row];
      if (value === undefined) continue;
      if (value === null) {
        isDown = false;
        continue;
      }
      const [left, top] = [((places[row] as number) - from) * right, bbox.height - (bend(value) - foot) * up];
      if (isDown) ctx.lineTo(left, top);
      else ctx.moveTo(left, top);
      isDown = true;
    }
    ctx.stroke();
  });
  return image;
}
