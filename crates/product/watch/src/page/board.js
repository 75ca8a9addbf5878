// SPDX-License-Identifier: Apache-2.0 OR MIT
// A page that is made from what is declared of it: board.rs.

import { Chart } from "./chart.js";
import { Look, Rows, byId, list, numbers, showTiles } from "./look.js";
import { compact, html, inUnit, percent, write } from "./words.js";

const look = new Look({ show, makeCharts, whom: "the process" });
let tables = null;

// Whole names that a name stands for: itself, or what begins with it in front of its `*`.
const namesOf = (name) => (name.endsWith("*") ? Object.keys(look.now.values).filter((it) => it.startsWith(name.slice(0, -1))) : [name]);
const metricOf = (name) => look.declared.metrics.find((metric) => name === metric.name || name.startsWith(`${metric.name}{`) || name === `${metric.name}*`);
const sum = (values, names) => names.reduce((all, name) => all + (values[name] ?? 0), 0);
const suffix = (metric) => (metric.unit === "" ? "" : metric.unit);

function said({ name, shown }) {
	const names = namesOf(name);
	const unit = suffix(metricOf(name));
	if (shown === "rate") {
		const fast = look.perSecond(({ values }) => sum(values, names));
		return unit === "bytes" ? inUnit(fast, unit) : compact(fast);
	}
	return inUnit(look.now.values[name], unit);
}

function showState() {
	const { board } = look.declared;
	const wrong = board.wrong.filter(([name]) => look.now.values[name] > 0).map(([, words]) => words);
	byId("state").classList.toggle("off", wrong.length > 0);
	write(byId("verdict-word"), wrong.length > 0 ? "Something is wrong" : "All is well");
	list("reasons", wrong);
	document.title = wrong.length > 0 ? `${board.title}: something is wrong` : board.title;
	write(byId("title"), board.title);
	const about = look.now.words[board.about]?.[0] ?? {};
	write(byId("about"), Object.entries(about).map(([name, word]) => `${name} ${word}`).join(" · "));
}

// A row without words is of the metric above it.
const row = (name, words, many) => html("tr", {}, html("td", {}, html("code", {}, words === "" ? name.slice(name.indexOf("{")) : name), html("small", {}, words)), ...numbers(many));

function makeTables() {
	const made = look.declared.board.tables.map(({ title, metrics }, at) => {
		const body = html("tbody");
		const head = html("thead", { class: "hidden" }, html("tr", {}, html("th", { scope: "col" }, "What"), html("th", { scope: "col", class: "number" }, "Value")));
		const table = html("table", {}, head, body);
		const section = html("section", { class: "card", "aria-labelledby": `table-${at}` }, html("h2", { id: `table-${at}` }, title), html("div", { class: "scroll" }, table));
		return { section, metrics, rows: new Rows(body, row) };
	});
	byId("tables").replaceChildren(...made.map(({ section }) => section));
	return made;
}

// A metric without labels is a row. One with labels is its sentence, and what of it is not 0.
function rowsOf(name) {
	const metric = metricOf(name);
	const said = (series) => inUnit(look.now.values[series], suffix(metric));
	if (name in look.now.values) return [[name, metric.help, [said(name)]]];
	const series = Object.keys(look.now.values).filter((it) => it.startsWith(`${name}{`) && look.now.values[it] !== 0);
	return [[name, metric.help, [series.length > 0 ? "" : "0"]], ...series.map((it) => [it, "", [said(it)]])];
}

function showTables() {
	tables ??= makeTables();
	for (const { metrics, rows } of tables) {
		rows.show(metrics.flatMap(rowsOf));
	}
}

function show() {
	showState();
	showTiles(look.declared.board.tiles.map((tile) => [tile.label, said(tile)]));
	showTables();
}

// A series that is not there yet has not begun: it counts from 0.
const valueOf = (sample, name) => {
	const whole = name.endsWith("*") ? namesOf(name) : [name];
	return whole.reduce((all, it) => all + (Number.isFinite(sample.get(it)) ? sample.get(it) : 0), 0);
};

function lineOf({ label, name, shown }) {
	if (shown === "value") return { label, of: (_, sample) => sample.get(name) };
	return {
		label,
		of: (from, to) => {
			const rise = valueOf(to, name) - valueOf(from, name);
			return rise >= 0 && to.at > from.at ? (1000 * rise) / (to.at - from.at) : NaN;
		},
	};
}

// As short as a chart's margin.
const inBytes = (value) => inUnit(value, "bytes").replace(/\.\d+/, "");

function makeCharts() {
	return look.declared.board.charts.map(({ title, unit, series }) => {
		const of = suffix(metricOf(series[0].name));
		const format = of === "ratio" ? percent : of === "bytes" ? inBytes : compact;
		return new Chart({ title, unit, format, series: series.map(lineOf) });
	});
}

look.begin();
