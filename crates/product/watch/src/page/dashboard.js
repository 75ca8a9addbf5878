// SPDX-License-Identifier: Apache-2.0 OR MIT
// What is now of a boost, and its last hour: what look.js has asked for.

import { Chart } from "./chart.js";
import { Details, Latency, showProcessors } from "./details.js";
import { Look, Rows, byId, list, numbers, rises, showTiles as showThese } from "./look.js";
import { Reason, reasonLink } from "./reason.js";
import { compact, count, duration, html, inUnit, percent, rate, write } from "./words.js";

const outcomeName = ({ name, kind }) => `erb_outcomes_total{outcome="${name}",kind="${kind}"}`;

const STATES = {
	fast: "may be answered",
	new: "the first command is Redis's",
	old: "older than ERB: not answered before Redis shows where it stands",
	bypass: "not answered any more, translated",
};
// Tables of metrics, each with its sentence of the declaration.
const TABLES = {
	gate: ["erb_serving", "erb_gate_open", "erb_admitting", "erb_lease_left_seconds", "erb_fence_commands", "erb_connections_holding"],
	feed: ["erb_redis_feed_up", "erb_redis_feeds_made_total", "erb_fills_on", "erb_fills_total", "erb_fills_waiting", "erb_fills_in_flight", "erb_redis_cpu_saved_seconds_total"],
	aside: ["erb_aside_level", "erb_aside_sample_hit_ratio", "erb_aside_tries_total", "erb_cache_size_bytes", "erb_connections_size_bytes"],
};
const YES_OR_NO = new Set(["erb_serving", "erb_gate_open", "erb_admitting", "erb_redis_feed_up", "erb_fills_on"]);
const GATES = ["splice_refused", "gate_refused", "command_refused", "cache_refused"];
const GATE_WORDS = ["not now", "closed", "commands", "missed"];

const look = new Look({ show, makeCharts, whom: "the daemon" });
const perSecond = (of) => look.perSecond(of);
// What is looked at: declared.json, and now.json of the last look.
let declared = null;
let now = null;
let details = null;
const reason = new Reason(look, outcomeName);

const rowsIn = (id, make) => new Rows(byId(id).tBodies[0], make);
const described = (name, words, many) =>
	html("tr", {}, html("td", {}, name, html("small", {}, words)), ...numbers(many));
const explained = (name, words, many) =>
	html("tr", {}, html("th", { scope: "row" }, html("code", {}, name)), html("td", {}, words), ...numbers(many));
const metricRow = (name, words, many) =>
	html("tr", {}, html("td", {}, html("code", {}, name), html("small", {}, words)), ...numbers(many));

const flowRows = rowsIn("flows", (_, words, many) => html("tr", {}, html("th", { scope: "row" }, words), ...numbers(many)));
const refusedRows = rowsIn("refused", (name, words, many) =>
	html("tr", {}, html("th", { scope: "row" }, html("a", { href: reasonLink(name) }, html("code", {}, name))), html("td", {}, words), ...numbers(many)));
const connectionRows = rowsIn("connections", (name, words) => {
	const row = described(name, words, 0);
	row.append(html("td", { class: "number" }, html("meter", { "aria-hidden": "true", min: "0" }), html("span")));
	return row;
});
const latency = new Latency(rowsIn("latency", explained));
const processorRows = rowsIn("processors", (name, _, many) => html("tr", {}, html("th", { scope: "row" }, name), ...numbers(many)));
const tables = Object.fromEntries(Object.keys(TABLES).map((id) => [id, rowsIn(id, metricRow)]));

function showAbout() {
	const redis = now.words.erb_redis_info[0] ?? {};
	const devices = now.words.erb_device_info.map(({ device, mode }) => `${device} (${mode === "native" ? "XDP and TC" : "TC"})`);
	const server = redis.version ? `Redis ${redis.version}, ${redis.role}` : "Redis not read yet";
	write(byId("about"), `${server} · ${devices.join(", ")} · build ${(now.words.erb_programs_info[0]?.build ?? "").slice(0, 12)}`);
}

function showState() {
	const serving = now.values.erb_serving === 1;
	byId("state").classList.toggle("off", !serving);
	write(byId("verdict-word"), serving ? "Answers are given" : "Answers are not given");
	const aside = now.values.erb_aside_level;
	write(byId("verdict-why"), serving && aside > 0 ? `ERB steps aside (level ${aside}): ${now.aside_why}` : "");
	list("reasons", now.not_serving);
	list("held", now.held.map(({ ms, all_keys: all, why }) => `${inUnit(ms / 1000, "seconds")}: ${why}${all ? "; nothing is answered meanwhile" : ""}`));
	document.title = serving ? "ERB" : "ERB: not answering";
}

function showTiles() {
	const hits = perSecond((of) => of.values.erb_cache_hits_total);
	const misses = perSecond((of) => of.values.erb_cache_misses_total);
	const tiles = [
		["Answered a second", rate(hits)],
		["Missed a second", rate(misses)],
		["Hit ratio", hits + misses > 0 ? percent(hits / (hits + misses)) : percent(NaN)],
		["Connections", count(now.values.erb_connections_tracked)],
		["Keys in the cache", compact(now.values.erb_cache_entries)],
		["Lease left", inUnit(now.values.erb_lease_left_seconds, "seconds")],
	];
	showThese(tiles);
}

function showWay() {
	for (const flow of document.querySelectorAll("#way [data-flow]")) {
		const id = flow.dataset.flow;
		const fast = perSecond((of) => of.flows[id]);
		flow.classList.toggle("active", fast > 0);
		write(flow.querySelector(".count"), rate(fast) + (id === "to_tc" ? " a second" : ""));
	}
	const open = now.values.erb_serving === 1 && now.values.erb_gate_open === 1 && now.values.erb_fence_commands === 0;
	byId("way-gate").classList.toggle("closed", !open);
	write(byId("way-gate-word"), open ? "open" : "closed");
	write(byId("way-cache-word"), `${compact(now.values.erb_cache_entries)} keys`);
	write(byId("way-redis-word"), now.values.erb_redis_feed_up === 1 ? "feed up" : "feed down");
	flowRows.show(declared.flows.map(({ id, text }) => [id, text, [rate(perSecond((of) => of.flows[id])), count(now.flows[id])]]));
}

function showRefused() {
	const find = (of, name) => of.outcomes.find((outcome) => outcome.name === name)?.count ?? NaN;
	const all = byId("all-reasons").checked;
	const rows = now.outcomes
		.filter(({ kind, count }) => kind === "refused" && (all || count > 0))
		.map((outcome) => ({ ...outcome, fast: perSecond((of) => find(of, outcome.name)), hour: look.inHour(outcomeName(outcome), outcome.count) }))
		.sort((a, b) => b.hour - a.hour || b.count - a.count || a.name.localeCompare(b.name));
	refusedRows.show(rows.map((row) => [row.name, row.text, [rate(row.fast), count(row.hour), count(row.count)]]));
	byId("no-reasons").hidden = rows.length > 0;
}

function showTables() {
	const total = Math.max(1, now.values.erb_connections_tracked);
	connectionRows.show(Object.entries(STATES).map(([name, words]) => [name, words, []]));
	for (const name of Object.keys(STATES)) {
		const value = now.values[`erb_connections{state="${name}"}`];
		const cell = connectionRows.rows.get(name).lastChild;
		cell.firstChild.max = total;
		cell.firstChild.value = value;
		write(cell.lastChild, count(value));
	}
	for (const [id, names] of Object.entries(TABLES)) {
		const of = (name) => declared.metrics.find((metric) => metric.name === name);
		const said = (name) => (YES_OR_NO.has(name) ? (now.values[name] === 1 ? "yes" : "no") : inUnit(now.values[name], of(name).unit));
		tables[id].show(names.map((name) => [name, of(name).help, [said(name)]]));
	}
}

// What requests of a way took in the mean between two samples.
const TIMED = "erb_request_duration_seconds";
const mean = (path) => (from, to) => {
	const [sum, many] = ["sum", "count"].map((end) => `${TIMED}_${end}{path="${path}"}`).map((name) => to.get(name) - from.get(name));
	return many > 0 && sum >= 0 ? sum / many : NaN;
};

function makeCharts() {
	const [hits, misses] = [rises(["erb_cache_hits_total"]), rises(["erb_cache_misses_total"])];
	const kinds = new Map(now.outcomes.map((outcome) => [outcome.name, outcome]));
	const refused = (id) => rises(declared.flows.find((flow) => flow.id === id).outcomes.filter((name) => kinds.has(name)).map((name) => outcomeName(kinds.get(name))));
	const off = (sample) => sample.get("erb_serving") === 0;
	return [
		new Chart({ title: "Reads", unit: "a second", format: compact, off, series: [{ label: "answered", of: hits }, { label: "missed", of: misses }] }),
		new Chart({ title: "Hit ratio", unit: "share of reads", format: percent, top: 1, series: [{ label: "answered from the cache", of: (a, b) => hits(a, b) / (hits(a, b) + misses(a, b)) }] }),
		new Chart({ title: "Refused", unit: "packets a second", format: compact, series: GATES.map((id, at) => ({ label: GATE_WORDS[at], of: refused(id) })) }),
		new Chart({ title: "Time of a request", unit: "mean, by way", format: duration, least: 1e-6, series: ["hit", "up", "held"].map((path) => ({ label: path, of: mean(path) })) }),
		new Chart({ title: "Connections", unit: "by state", format: compact, series: Object.keys(STATES).map((state) => ({ label: state, of: (_, b) => b.get(`erb_connections{state="${state}"}`) })) }),
	];
}

async function show() {
	({ declared, now } = look);
	showAbout();
	showState();
	showTiles();
	showWay();
	showRefused();
	reason.show();
	showTables();
	latency.show(now);
	showProcessors(processorRows, now, perSecond);
	if (declared.details) details ??= new Details((path) => look.ask(path));
	await details?.look();
}

byId("all-reasons").addEventListener("change", () => now && showRefused());
look.begin();
