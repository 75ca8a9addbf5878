// SPDX-License-Identifier: Apache-2.0 OR MIT
// Asks for what is now each second while somebody looks, for the hour each ten; with a token where one is needed.

import { html, write } from "./words.js";

const NOW_MS = 1_000;
const HOUR_MS = 3_600_000;
// Failures in a row before the page says so: a connection ends each minute, and one request may meet that.
const FAILURES = 2;

export const byId = (id) => document.getElementById(id);

// What stands behind the number sign and this word; null: something else does.
export function behind(word) {
	if (!location.hash.startsWith(word)) return null;
	const said = location.hash.slice(word.length);
	try {
		return decodeURIComponent(said);
	} catch {
		return said;
	}
}

class NoToken extends Error {}

// Rows of a table by their names, so that only what differs is written.
export class Rows {
	constructor(body, make) {
		this.body = body;
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

export const numbers = (many) => Array.from({ length: many }, () => html("td", { class: "number" }));

// The lines of a list.
export function list(id, lines) {
	const there = byId(id);
	const same = lines.length === there.children.length && lines.every((line, at) => line === there.children[at].textContent);
	if (!same) there.replaceChildren(...lines.map((line) => html("li", {}, line)));
}

// Tiles: names, each with its value.
export function showTiles(tiles) {
	const there = byId("tiles");
	if (!there.children.length) {
		there.append(...tiles.map(([name]) => html("div", {}, html("dt", {}, name), html("dd"))));
	}
	tiles.forEach(([, value], at) => write(there.children[at].lastChild, value));
}

// How fast some series rose between two looks; what fell began anew.
export const rises = (names) => (from, to) => {
	const rise = names.reduce((sum, name) => sum + to.get(name) - from.get(name), 0);
	return rise >= 0 && to.at > from.at ? (1000 * rise) / (to.at - from.at) : NaN;
};

// What is looked at. show(): draws what is now; makeCharts(): once it is known; whom: who does not answer.
export class Look {
	constructor({ show, makeCharts, whom }) {
		Object.assign(this, { show, makeCharts, whom });
		this.declared = null;
		this.before = null;
		this.now = null;
		this.hour = null;
		this.hourAsked = -Infinity;
		this.charts = [];
		this.failures = 0;
		// When the last look came, by this page's own clock.
		this.heard = performance.now();
		this.paused = false;
		this.token = sessionStorage.getItem("token");
	}

	begin() {
		byId("pause").addEventListener("click", () => this.pause());
		document.addEventListener("keydown", (event) => {
			const plain = !event.ctrlKey && !event.metaKey && !event.altKey && event.target.tagName !== "INPUT";
			if (event.key === "p" && plain) this.pause();
		});
		byId("login").addEventListener("submit", (event) => {
			event.preventDefault();
			this.token = byId("token").value.trim();
			sessionStorage.setItem("token", this.token);
			byId("login").hidden = true;
			this.look();
		});
		this.turn();
	}

	async ask(path) {
		if (this.token !== null && !/^[!-~]+$/.test(this.token)) throw new NoToken();
		const headers = this.token === null ? {} : { Authorization: `Bearer ${this.token}` };
		const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
		if (answer.status === 401) throw new NoToken();
		if (!answer.ok) throw new Error((await answer.text()).trim());
		return answer.json();
	}

	// How fast something rose between the last two looks; what fell began anew.
	perSecond(of) {
		const { before, now } = this;
		if (!before || before.run !== now.run) return NaN;
		const rise = of(now) - of(before);
		const seconds = (now.at_ms - before.at_ms) / 1000;
		return rise >= 0 && seconds > 0 ? rise / seconds : NaN;
	}

	// The hour's samples and what is now behind them, each a function from a name to its value.
	samples() {
		const { hour, now } = this;
		if (!hour) return [];
		const places = new Map(hour.names.map((name, at) => [name, at + 1]));
		const past = hour.samples.map((sample) => ({ at: sample[0], get: (name) => sample[places.get(name)] ?? NaN }));
		const isNew = now.run === hour.run && now.at_ms > (past.at(-1)?.at ?? 0);
		if (isNew) past.push({ at: now.at_ms, get: (name) => now.values[name] ?? NaN });
		return past;
	}

	// How much a series rose in the last hour; last: what it is now.
	inHour(name, last) {
		const { hour } = this;
		const at = hour?.names.indexOf(name) ?? -1;
		const first = at < 0 ? undefined : hour.samples.find((sample) => sample[at + 1] != null);
		const rise = first ? last - first[at + 1] : NaN;
		return rise >= 0 ? rise : last;
	}

	// What is new of the hour is added; what is older than it goes.
	async askHour() {
		const known = this.hour && this.hour.run === this.now.run ? this.hour.samples : [];
		const found = await this.ask(`hour.json?since=${known.at(-1)?.[0] ?? 0}`);
		const all = this.hour?.run === found.run ? known.concat(found.samples) : found.samples;
		const oldest = this.now.at_ms - HOUR_MS;
		this.hour = { ...found, samples: all.filter(([at]) => at >= oldest) };
	}

	fail(error) {
		if (error instanceof NoToken) {
			write(byId("login-error"), this.token === null ? "" : "This is not the token.");
			this.token = null;
			sessionStorage.removeItem("token");
			byId("board").hidden = true;
			if (byId("login").hidden) {
				byId("login").hidden = false;
				byId("token").focus();
			}
			write(byId("about"), "The token is needed");
			return;
		}
		this.failures += 1;
		if (this.failures < FAILURES) return;
		byId("state").classList.add("off");
		write(byId("verdict-word"), `Nothing is heard of ${this.whom}`);
		write(byId("verdict-why"), String(error.message));
		byId("board").classList.add("old");
		write(byId("age"), `what is shown is ${Math.round((performance.now() - this.heard) / 1000)} s old`);
	}

	async look() {
		if (this.paused || document.hidden || !byId("login").hidden) return;
		try {
			this.declared ??= await this.ask("declared.json");
			const found = await this.ask("now.json");
			[this.before, this.now] = [this.now, found];
			[this.failures, this.heard] = [0, performance.now()];
			byId("board").classList.remove("old");
			byId("board").hidden = false;
			byId("login").hidden = true;
			await this.show();
			write(byId("age"), this.before ? `each ${NOW_MS / 1000} s` : "");
			if (!this.charts.length) {
				this.charts = this.makeCharts();
				byId("charts").replaceChildren(...this.charts.map((chart) => chart.figure));
			}
			if (found.run !== this.hour?.run || performance.now() - this.hourAsked > (this.hour?.every_ms ?? 0)) {
				this.hourAsked = performance.now();
				await this.askHour();
			}
			for (const chart of this.charts) chart.show(this.samples(), this.hour.every_ms);
		} catch (error) {
			this.fail(error);
		}
	}

	async turn() {
		await this.look();
		setTimeout(() => this.turn(), NOW_MS);
	}

	pause() {
		this.paused = !this.paused;
		byId("pause").setAttribute("aria-pressed", String(this.paused));
		write(byId("age"), this.paused ? "paused" : "");
	}
}
