// SPDX-License-Identifier: Apache-2.0 OR MIT
// How long requests take, what each processor does, and, for whom it is allowed, keys by heat and connections.
// A page of one connection is named by what stands behind the number sign: #conn/ADDRESS.

import { behind, byId } from "./look.js";
import { compact, count, duration, html, percent, rate, write } from "./words.js";

// Over so many looks: one alone has few samples.
const LOOKS = 30;
const CONN = "#conn/";
const ROWS = 50;

// What came between two looks, by a bucket's begin; all of it, if counting began anew.
function between(before, now) {
	const was = new Map((before && before.samples <= now.samples ? before.buckets : []).map((it) => [it.from_ns, it.count]));
	return now.buckets.map((it) => ({ ...it, count: it.count - (was.get(it.from_ns) ?? 0) })).filter((it) => it.count > 0);
}

// The time that this share did not exceed, in seconds.
function quantile(buckets, share) {
	const wanted = Math.max(1, share * buckets.reduce((sum, it) => sum + it.count, 0));
	let below = 0;
	for (const { from_ns: from, below_ns: to, count: many } of buckets) {
		if (below + many >= wanted) return (from + (((to ?? from) - from) * (wanted - below)) / many) / 1e9;
		below += many;
	}
	return NaN;
}

export class Latency {
	constructor(rows) {
		this.rows = rows;
		this.looks = [];
	}

	show(now) {
		if (this.looks.at(-1)?.run !== now.run) this.looks = [];
		this.looks.push(now);
		if (this.looks.length > LOOKS) this.looks.shift();
		const first = this.looks.length > 1 ? this.looks[0] : null;
		this.rows.show(
			now.latency.map((path) => {
				const lately = between(first?.latency.find((it) => it.path === path.path), path);
				const many = lately.reduce((sum, it) => sum + it.count, 0);
				const told = [0.5, 0.99, 0.999].map((share) => duration(quantile(lately, share)));
				return [path.path, path.text, [...told, count(many), count(path.samples)]];
			}),
		);
	}
}

export function showProcessors(rows, now, perSecond) {
	const find = (look, cpu) => look.processors.find((it) => it.cpu === cpu) ?? {};
	rows.show(
		now.processors.map(({ cpu }) => {
			const fast = ["answered", "up", "down"].map((way) => rate(perSecond((look) => find(look, cpu)[way] ?? 0)));
			return [String(cpu), "", fast];
		}),
	);
	byId("no-processors").hidden = now.processors.length > 0;
}

const cells = (words) => words.map((word) => html("td", { class: "number" }, word));
const STATE_WORDS = {
	new: "Its first command is not answered yet: nothing of it is answered from the cache.",
	fast: "It may be answered from the cache.",
	bypass: "Nothing of it is answered before Redis says how it stands.",
	old: "It is older than ERB: not answered before Redis says how it stands.",
};

// Keys by heat and connections. They are asked for only while their part of the page is open.
export class Details {
	constructor(ask) {
		this.ask = ask;
		this.before = null;
		byId("details").hidden = false;
		window.addEventListener("hashchange", () => this.look());
	}

	async look() {
		const client = behind(CONN);
		byId("conn").hidden = client === null;
		if (client !== null) this.showOne(client, await this.ask(`connections.json?client=${encodeURIComponent(client)}`));
		if (byId("keys-open").open) this.showKeys(await this.ask("keys.json"));
		if (byId("connections-open").open) this.showAll(await this.ask("connections.json"));
	}

	showKeys({ one_of: oneOf, samples, keys }) {
		write(byId("keys-note"), `${count(samples)} samples, one of ${oneOf} packets of a processor. Keys above 256 bytes are not told.`);
		byId("keys").tBodies[0].replaceChildren(
			...keys.slice(0, ROWS).map((it) =>
				html("tr", {}, html("th", { scope: "row" }, html("code", {}, it.key)), ...cells([
					String(it.db),
					compact(it.count * oneOf),
					percent(it.count / Math.max(1, samples)),
					it.error ? percent((it.count - it.error) / Math.max(1, samples)) : "",
					count(it.key_bytes),
				]))),
		);
	}

	showAll({ total, rows }) {
		write(byId("connections-note"), total > rows.length ? `The first ${rows.length} of ${count(total)}.` : `${count(total)} connections.`);
		byId("each-connection").tBodies[0].replaceChildren(
			...rows.map((it) =>
				html("tr", {}, html("th", { scope: "row" }, html("a", { href: CONN + encodeURIComponent(it.client) }, it.client)), html("td", {}, it.state, html("small", {}, it.why ?? "")), ...cells([
					count(it.in_delta), count(it.requests), count(it.requests - it.replies),
				]))),
		);
	}

	showOne(client, { rows }) {
		const one = rows.find((it) => it.client === client);
		write(byId("conn-title"), `Connection ${client}`);
		write(byId("conn-state"), one ? STATE_WORDS[one.state] ?? one.state : "It is not there, or not any more.");
		const was = this.before?.client === client ? this.before : null;
		const moved = (name) => (was && one ? `${count(one[name])} (+${count((one[name] - was[name]) >>> 0)})` : count(one?.[name] ?? NaN));
		const lines = one
			? [
					["Server", one.server],
					["State", one.state],
					...(one.why ? [["Why it is not answered", one.why]] : []),
					["Request bytes answered without Redis, modulo 2^32", moved("in_delta")],
					["Reply bytes sent without Redis, modulo 2^32", moved("out_delta")],
					["Requests that went up to Redis", moved("requests")],
					["Replies of Redis", moved("replies")],
					["Unanswered", count((one.requests - one.replies) >>> 0)],
					["Flags (CONN_F_*)", `0x${one.flags.toString(16)}`],
				]
			: [];
		byId("conn-facts").replaceChildren(...lines.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
		this.before = one ? { ...one } : null;
	}
}
