// SPDX-License-Identifier: Apache-2.0 OR MIT
// The page of one outcome: what it means, where it is counted, its last hour. It is named by what stands behind the
// number sign: #reason/NAME.

import { Chart } from "./chart.js";
import { behind, byId, rises } from "./look.js";
import { compact, count, html, rate, write } from "./words.js";

const REASON = "#reason/";

export const reasonLink = (name) => REASON + encodeURIComponent(name);

export class Reason {
	// seriesOf: the series of an outcome.
	constructor(look, seriesOf) {
		Object.assign(this, { look, seriesOf });
		this.chart = null;
		this.name = null;
		window.addEventListener("hashchange", () => this.look.now && this.show());
	}

	show() {
		const { now, declared } = this.look;
		const wanted = behind(REASON);
		const one = now.outcomes.find(({ name }) => name === wanted);
		byId("reason").hidden = wanted === null;
		if (wanted === null) return;
		const series = one ? this.seriesOf(one) : null;
		if (this.name !== wanted) this.begin(wanted, series);
		write(byId("reason-title"), wanted);
		write(byId("reason-text"), one ? one.text : "There is no such reason.");
		const way = declared.flows.find(({ outcomes }) => outcomes.includes(wanted));
		const lines = one
			? [
					["Kind", one.kind],
					["Counted on the way", way ? way.text : "on none: it is no packet's end"],
					["A second", rate(this.look.perSecond((of) => of.outcomes.find(({ name }) => name === wanted)?.count ?? NaN))],
					["Last hour", count(this.look.inHour(series, one.count))],
					["Since the load", count(one.count)],
				]
			: [];
		byId("reason-facts").replaceChildren(...lines.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
		if (this.look.hour) this.chart?.show(this.look.samples(), this.look.hour.every_ms);
	}

	begin(name, series) {
		this.name = name;
		this.chart = series ? new Chart({ title: "The last hour", unit: "a second", format: compact, series: [{ label: name, of: rises([series]) }] }) : null;
		byId("reason-chart").replaceChildren(...(this.chart ? [this.chart.figure] : []));
		byId("reason").scrollIntoView();
	}
}
