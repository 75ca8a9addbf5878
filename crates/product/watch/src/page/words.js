// SPDX-License-Identifier: Apache-2.0 OR MIT
// How values are written, and elements made. Whatever comes from outside becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–";

const fill = (made, attributes, children) => {
	for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
	made.append(...children);
	return made;
};

// An element with attributes; a child that is a string becomes a text node.
export const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Only what differs is written: a screen reader tells what was written.
export const write = (element, text) => {
	if (element.textContent !== text) element.textContent = text;
};

const is = (value) => Number.isFinite(value);
export const count = (value) => (is(value) ? whole.format(value) : NONE);
export const compact = (value) => (is(value) ? (Math.abs(value) < 10 ? tenths : short).format(value) : NONE);
export const rate = (value) => (is(value) ? (value < 10 ? tenths : whole).format(value) : NONE);
export const percent = (value) => (is(value) ? tenths.format(100 * value) + " %" : NONE);

// In the metric's base unit.
export const inUnit = (value, unit) => {
	if (!is(value)) return NONE;
	if (unit === "ratio") return percent(value);
	if (unit === "seconds") {
		if (Math.abs(value) < 1) return whole.format(1000 * value) + " ms";
		if (value >= 2 * 86_400) return tenths.format(value / 86_400) + " days";
		return value >= 2 * 3_600 ? tenths.format(value / 3_600) + " h" : whole.format(value) + " s";
	}
	if (unit === "bytes") {
		const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
		const step = value < 1 ? 0 : Math.min(steps.length - 1, Math.floor(Math.log2(value) / 10));
		return tenths.format(value / 1024 ** step) + " " + steps[step];
	}
	return whole.format(value);
};

// A time of any length, in seconds.
export const duration = (value) => {
	if (!is(value)) return NONE;
	const [size, unit] = value < 1e-6 ? [1e-9, "ns"] : value < 1e-3 ? [1e-6, "µs"] : value < 1 ? [1e-3, "ms"] : [1, "s"];
	return (value / size < 10 ? tenths : whole).format(value / size) + " " + unit;
};

export const ago = (minutes) => (minutes < 0.5 ? "now" : whole.format(minutes) + " min ago");
