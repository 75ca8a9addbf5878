// SPDX-License-Identifier: Apache-2.0 OR MIT
// A chart of the last hour: lines, a cursor for pointer and keyboard, and the same as a table.

import { ago, html, svg, write } from "./words.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
// Rows of the table, minutes apart.
const ROW_MINUTES = 5;
// A line is broken where samples are missing for longer than so many of their distances.
const GAP = 2.5;

// The next of 1, 2, 5 times a power of ten.
const roundUp = (value) => {
	const power = 10 ** Math.floor(Math.log10(value));
	return power * [1, 2, 5, 10].find((step) => value <= step * power * 1.0001);
};

export class Chart {
	// series: [{ label, of }] with of(before, sample) -> value or null; off(sample): shaded where true.
	// least: the scale's top is at least this; top: it is this.
	constructor({ title, unit, format, series, top, off, least = 1 }) {
		Object.assign(this, { title, unit, format, series, top, off, least });
		this.points = [];
		this.at = null;
		this.width = 520;
		this.drawing = svg("svg", { tabindex: "0", role: "img" });
		this.readout = html("p", { class: "readout", "aria-live": "polite" });
		this.rows = html("tbody");
		const keys = series.map(({ label }, number) =>
			html("span", { class: "key" },
				svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, svg("path", { class: `s${number}`, d: "M1 4H21" })),
				label));
		const heads = ["When", ...series.map(({ label }) => label)];
		const head = html("tr", {}, ...heads.map((word) => html("th", { scope: "col" }, word)));
		const table = html("table", {}, html("caption", { class: "hidden" }, `${title}, ${unit}`), html("thead", {}, head), this.rows);
		const details = html("details", {}, html("summary", {}, "As a table"), html("div", { class: "scroll" }, table));
		const caption = html("figcaption", {}, html("h3", {}, title), ...keys);
		this.figure = html("figure", {}, caption, this.drawing, this.readout, details);
		this.drawing.addEventListener("keydown", (event) => this.key(event));
		this.drawing.addEventListener("pointermove", (event) => this.point(event));
		for (const name of ["blur", "pointerleave"]) this.drawing.addEventListener(name, () => this.move(null));
	}

	// samples: [{ at, get }], the oldest first.
	show(samples, everyMs) {
		this.now = samples.length ? samples[samples.length - 1].at : 0;
		this.points = samples.map((sample, number) => {
			const before = samples[number - 1];
			const near = before && sample.at - before.at < GAP * everyMs;
			return {
				at: sample.at,
				near,
				off: this.off ? this.off(sample) : false,
				values: this.series.map(({ of }) => (near ? of(before, sample) : null)),
			};
		});
		this.draw();
		this.tabulate();
	}

	x(at) {
		return LEFT + (this.width - LEFT - RIGHT) * (1 - (this.now - at) / HOUR_MS);
	}

	y(value) {
		return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / this.most);
	}

	draw() {
		// One unit is one pixel, so that letters are as large as elsewhere.
		this.width = this.drawing.clientWidth || this.width;
		this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
		const values = this.points.flatMap((point) => point.values).filter(Number.isFinite);
		this.most = this.top ?? roundUp(Math.max(this.least, ...values));
		const parts = this.shades();
		for (const share of [0, 0.5, 1]) {
			const y = this.y(share * this.most);
			parts.push(svg("line", { class: "axis", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
			parts.push(svg("text", { class: "left", x: LEFT - 8, y: y + 4 }, this.format(share * this.most)));
		}
		for (const minutes of [60, 45, 30, 15, 0]) {
			const x = this.x(this.now - minutes * MINUTE_MS);
			parts.push(svg("text", { x: Math.min(x, this.width - 16), y: HEIGHT - 6 }, minutes ? `−${minutes} min` : "now"));
		}
		this.series.forEach((_, number) => parts.push(svg("path", { class: `s${number}`, d: this.path(number) })));
		this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
		this.drawing.replaceChildren(...parts, this.cursor);
		this.drawing.setAttribute("aria-label", this.summary());
		this.move(this.at);
	}

	// Times at which nothing was answered.
	shades() {
		return this.points.flatMap((point, number) => {
			if (!point.off || !point.near) return [];
			const from = this.x(this.points[number - 1].at);
			return [svg("rect", { class: "off-time", x: from, y: TOP, width: Math.max(0, this.x(point.at) - from), height: HEIGHT - TOP - BOTTOM })];
		});
	}

	path(number) {
		let path = "";
		let pen = "M";
		for (const point of this.points) {
			const value = point.values[number];
			if (Number.isFinite(value)) {
				path += `${pen}${this.x(point.at).toFixed(1)} ${this.y(Math.min(value, this.most)).toFixed(1)}`;
				pen = "L";
			} else pen = "M";
		}
		return path;
	}

	said(point) {
		const each = this.series.map(({ label }, number) => `${label} ${this.format(point.values[number])}`);
		return `${ago((this.now - point.at) / MINUTE_MS)}: ${each.join(", ")}${point.off ? ", not answering" : ""}`;
	}

	summary() {
		const last = this.points[this.points.length - 1];
		return `${this.title}, ${this.unit}, over the last hour. ${last ? this.said(last) : "Nothing yet"}. Left and right move a cursor.`;
	}

	// The cursor, by the time of a point; null: none.
	move(at) {
		this.at = at;
		const point = at === null ? undefined : this.points.find((point) => point.at >= at);
		if (!point) {
			this.cursor?.setAttribute("visibility", "hidden");
			write(this.readout, "");
			return;
		}
		const x = this.x(point.at);
		this.cursor.setAttribute("x1", x);
		this.cursor.setAttribute("x2", x);
		this.cursor.setAttribute("visibility", "visible");
		write(this.readout, this.said(point));
	}

	key(event) {
		const last = this.points.length - 1;
		const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -last, End: last };
		if (!(event.key in steps) || last < 0) return;
		event.preventDefault();
		const found = this.at === null ? -1 : this.points.findIndex((point) => point.at >= this.at);
		const to = Math.min(last, Math.max(0, (found < 0 ? last + 1 : found) + steps[event.key]));
		this.move(this.points[to].at);
	}

	point(event) {
		const box = this.drawing.getBoundingClientRect();
		const share = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
		this.move(this.now - HOUR_MS * (1 - share));
	}

	tabulate() {
		const rows = [];
		for (let minutes = 0; minutes < 60; minutes += ROW_MINUTES) {
			const at = this.now - minutes * MINUTE_MS;
			const point = this.points.findLast((point) => point.at <= at);
			if (!point || at - point.at > ROW_MINUTES * MINUTE_MS) continue;
			const cells = point.values.map((value) => html("td", {}, this.format(value)));
			rows.push(html("tr", {}, html("th", { scope: "row" }, ago(minutes)), ...cells));
		}
		this.rows.replaceChildren(...rows);
	}
}
