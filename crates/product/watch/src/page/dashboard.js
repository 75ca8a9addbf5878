// SPDX-License-Identifier: Apache-2.0 OR MIT
// Asks for what is now each second while somebody looks, for the hour each ten, and shows both.

import { Chart } from "./chart.js";
import { Details, Latency, showProcessors } from "./details.js";
import { compact, count, duration, html, inUnit, percent, rate, write } from "./words.js";

const NOW_MS = 1_000;
const HOUR_MS = 3_600_000;
// Failures in a row before the page says so: a connection ends each minute, and one request may meet that.
const FAILURES = 2;
const byId = (id) => document.getElementById(id);
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
	feed: ["erb_redis_feed_up", "erb_redis_feeds_made_total", "erb_fills_on", "erb_fills_total", "erb_fills_waiting", "erb_fills_in_flight"],
	aside: ["erb_aside_level", "erb_aside_sample_hit_ratio", "erb_aside_tries_total", "erb_cache_size_bytes", "erb_connections_size_bytes"],
};
const YES_OR_NO = new Set(["erb_serving", "erb_gate_open", "erb_admitting", "erb_redis_feed_up", "erb_fills_on"]);
const GATES = ["splice_refused", "gate_refused", "command_refused", "cache_refused"];
const GATE_WORDS = ["not now", "closed", "commands", "missed"];

let declared = null;
let token = sessionStorage.getItem("token");
let paused = false;
let failures = 0;
let before = null;
let now = null;
let hour = null;
let hourAsked = -Infinity;
let charts = [];
let details = null;

class NoToken extends Error {}

async function ask(path) {
	if (token !== null && !/^[!-~]+$/.test(token)) throw new NoToken();
	const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
	const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
	if (answer.status === 401) throw new NoToken();
	if (!answer.ok) throw new Error((await answer.text()).trim());
	return answer.json();
}

// How fast it rose between the last two looks; what fell began anew.
function perSecond(of) {
	if (!before || before.run !== now.run) return NaN;
	const rise = of(now) - of(before);
	const seconds = (now.at_ms - before.at_ms) / 1000;
	return rise >= 0 && seconds > 0 ? rise / seconds : NaN;
}

// Rows by their names, so that only what differs is written.
class Rows {
	constructor(id, make) {
		this.body = byId(id).tBodies[0];
		this.make = make;
		this.rows = new Map();
	}

	show(list) {
		const wanted = list.map(([name, words, cells]) => {
			if (!this.rows.has(name)) this.rows.set(name, this.make(name, words, cells.length));
			const row = this.rows.get(name);
			cells.forEach((cell, number) => write(row.cells[row.cells.length - cells.length + number], cell));
			return row;
		});
		const same = wanted.length === this.body.rows.length && wanted.every((row, at) => row === this.body.rows[at]);
		if (!same) this.body.replaceChildren(...wanted);
	}
}

const numbers = (many) => Array.from({ length: many }, () => html("td", { class: "number" }));
const described = (name, words, many) =>
	html("tr", {}, html("td", {}, name, html("small", {}, words)), ...numbers(many));
const explained = (name, words, many) =>
	html("tr", {}, html("th", { scope: "row" }, html("code", {}, name)), html("td", {}, words), ...numbers(many));
const metricRow = (name, words, many) =>
	html("tr", {}, html("td", {}, html("code", {}, name), html("small", {}, words)), ...numbers(many));

const flowRows = new Rows("flows", (_, words, many) => html("tr", {}, html("th", { scope: "row" }, words), ...numbers(many)));
const refusedRows = new Rows("refused", explained);
const connectionRows = new Rows("connections", (name, words) => {
	const row = described(name, words, 0);
	row.append(html("td", { class: "number" }, html("meter", { "aria-hidden": "true", min: "0" }), html("span")));
	return row;
});
const latency = new Latency(new Rows("latency", explained));
const processorRows = new Rows("processors", (name, _, many) => html("tr", {}, html("th", { scope: "row" }, name), ...numbers(many)));
const tables = Object.fromEntries(Object.keys(TABLES).map((id) => [id, new Rows(id, metricRow)]));

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

function list(id, lines) {
	const there = byId(id);
	const same = lines.length === there.children.length && lines.every((line, at) => line === there.children[at].textContent);
	if (!same) there.replaceChildren(...lines.map((line) => html("li", {}, line)));
}

function showTiles() {
	const hits = perSecond((look) => look.values.erb_cache_hits_total);
	const misses = perSecond((look) => look.values.erb_cache_misses_total);
	const tiles = [
		["Answered a second", rate(hits)],
		["Missed a second", rate(misses)],
		["Hit ratio", hits + misses > 0 ? percent(hits / (hits + misses)) : percent(NaN)],
		["Connections", count(now.values.erb_connections_tracked)],
		["Keys in the cache", compact(now.values.erb_cache_entries)],
		["Lease left", inUnit(now.values.erb_lease_left_seconds, "seconds")],
	];
	const there = byId("tiles");
	if (!there.children.length) {
		there.append(...tiles.map(([name]) => html("div", {}, html("dt", {}, name), html("dd"))));
	}
	tiles.forEach(([, value], at) => write(there.children[at].lastChild, value));
}

function showWay() {
	for (const flow of document.querySelectorAll("#way [data-flow]")) {
		const id = flow.dataset.flow;
		const fast = perSecond((look) => look.flows[id]);
		flow.classList.toggle("active", fast > 0);
		write(flow.querySelector(".count"), rate(fast) + (id === "to_tc" ? " a second" : ""));
	}
	const open = now.values.erb_serving === 1 && now.values.erb_gate_open === 1 && now.values.erb_fence_commands === 0;
	byId("way-gate").classList.toggle("closed", !open);
	write(byId("way-gate-word"), open ? "open" : "closed");
	write(byId("way-cache-word"), `${compact(now.values.erb_cache_entries)} keys`);
	write(byId("way-redis-word"), now.values.erb_redis_feed_up === 1 ? "feed up" : "feed down");
	flowRows.show(declared.flows.map(({ id, text }) => [id, text, [rate(perSecond((look) => look.flows[id])), count(now.flows[id])]]));
}

// How much a series rose in the last hour.
function inHour(name, last) {
	const at = hour?.names.indexOf(name) ?? -1;
	const first = at < 0 ? undefined : hour.samples.find((sample) => sample[at + 1] != null);
	const rise = first ? last - first[at + 1] : NaN;
	return rise >= 0 ? rise : last;
}

function showRefused() {
	const find = (look, name) => look.outcomes.find((outcome) => outcome.name === name)?.count ?? NaN;
	const all = byId("all-reasons").checked;
	const rows = now.outcomes
		.filter(({ kind, count }) => kind === "refused" && (all || count > 0))
		.map((outcome) => ({ ...outcome, fast: perSecond((look) => find(look, outcome.name)), hour: inHour(outcomeName(outcome), outcome.count) }))
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

// The hour's samples and what is now behind them, each a function from a name to its value.
function samples() {
	if (!hour) return [];
	const places = new Map(hour.names.map((name, at) => [name, at + 1]));
	const past = hour.samples.map((sample) => ({ at: sample[0], get: (name) => sample[places.get(name)] ?? NaN }));
	if (now.run === hour.run && now.at_ms > (past.at(-1)?.at ?? 0)) past.push({ at: now.at_ms, get: (name) => now.values[name] ?? NaN });
	return past;
}

const rises = (names) => (from, to) => {
	const rise = names.reduce((sum, name) => sum + to.get(name) - from.get(name), 0);
	return rise >= 0 && to.at > from.at ? (1000 * rise) / (to.at - from.at) : NaN;
};

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
	charts = [
		new Chart({ title: "Reads", unit: "a second", format: compact, off, series: [{ label: "answered", of: hits }, { label: "missed", of: misses }] }),
		new Chart({ title: "Hit ratio", unit: "share of reads", format: percent, top: 1, series: [{ label: "answered from the cache", of: (a, b) => hits(a, b) / (hits(a, b) + misses(a, b)) }] }),
		new Chart({ title: "Refused", unit: "packets a second", format: compact, series: GATES.map((id, at) => ({ label: GATE_WORDS[at], of: refused(id) })) }),
		new Chart({ title: "Time of a request", unit: "mean, by way", format: duration, least: 1e-6, series: ["hit", "up", "held"].map((path) => ({ label: path, of: mean(path) })) }),
		new Chart({ title: "Connections", unit: "by state", format: compact, series: Object.keys(STATES).map((state) => ({ label: state, of: (_, b) => b.get(`erb_connections{state="${state}"}`) })) }),
	];
	byId("charts").replaceChildren(...charts.map((chart) => chart.figure));
}

// What is new of the hour is added; what is older than it goes.
async function askHour() {
	const known = hour && hour.run === now.run ? hour.samples : [];
	const found = await ask(`hour.json?since=${known.at(-1)?.[0] ?? 0}`);
	const all = hour?.run === found.run ? known.concat(found.samples) : found.samples;
	const oldest = now.at_ms - HOUR_MS;
	hour = { ...found, samples: all.filter(([at]) => at >= oldest) };
}

function show() {
	byId("board").hidden = false;
	byId("login").hidden = true;
	showAbout();
	showState();
	showTiles();
	showWay();
	showRefused();
	showTables();
	latency.show(now);
	showProcessors(processorRows, now, perSecond);
}

function fail(error) {
	if (error instanceof NoToken) {
		write(byId("login-error"), token === null ? "" : "This is not the token.");
		token = null;
		sessionStorage.removeItem("token");
		byId("board").hidden = true;
		if (byId("login").hidden) {
			byId("login").hidden = false;
			byId("token").focus();
		}
		write(byId("about"), "The token is needed");
		return;
	}
	failures += 1;
	if (failures < FAILURES) return;
	byId("state").classList.add("off");
	write(byId("verdict-word"), "Nothing is heard of the daemon");
	write(byId("verdict-why"), String(error.message));
	write(byId("age"), "what is shown is old");
}

async function look() {
	if (paused || document.hidden || !byId("login").hidden) return;
	try {
		declared ??= await ask("declared.json");
		const found = await ask("now.json");
		[before, now] = [now, found];
		failures = 0;
		show();
		write(byId("age"), before ? `each ${NOW_MS / 1000} s` : "");
		if (!charts.length) makeCharts();
		if (declared.details) details ??= new Details(ask);
		await details?.look();
		if (now.run !== hour?.run || performance.now() - hourAsked > (hour?.every_ms ?? 0)) {
			hourAsked = performance.now();
			await askHour();
		}
		for (const chart of charts) chart.show(samples(), hour.every_ms);
	} catch (error) {
		fail(error);
	}
}

async function turn() {
	await look();
	setTimeout(turn, NOW_MS);
}

function pause() {
	paused = !paused;
	byId("pause").setAttribute("aria-pressed", String(paused));
	write(byId("age"), paused ? "paused" : "");
}

byId("pause").addEventListener("click", pause);
byId("all-reasons").addEventListener("change", () => now && showRefused());
document.addEventListener("keydown", (event) => {
	if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey && event.target.tagName !== "INPUT") pause();
});
byId("login").addEventListener("submit", (event) => {
	event.preventDefault();
	token = byId("token").value.trim();
	sessionStorage.setItem("token", token);
	byId("login").hidden = true;
	look();
});
turn();
