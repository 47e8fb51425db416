// One page about a fleet. It only reads: GET /v1/status every two seconds, /v1/cost every ten, /v1/why when asked.
// All text reaches the page as text nodes: names of jobs are other people's words.
"use strict";

const STATUS_MS = 2000, COST_MS = 10000, KEY = "tradewind-token";
const COLOURS = {
  useful: "#2e9e6b", recomputed: "#d64545", starting: "#5b8def", restarting: "#f08a8a", resizing: "#e8b339", checkpointing: "#8f6bd1",
  ending: "#9ec5e8", unmeasured: "#c9a27c", booting: "#7f8b99", queued: "#a9b4c0", platform: "#3f8fa3", idle: "#cfd6de", failed: "#4b5563",
};
const OVER = ["succeeded", "failed", "stopped"];
const at = (id) => document.getElementById(id);

function el(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "click") made.addEventListener("click", value);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

const dollars = (uusd) => {
  const amount = uusd / 1e6;
  if (amount > 0 && amount < 0.0001) return "< $0.0001";
  return "$" + (amount >= 0.1 || amount === 0 ? amount.toFixed(2) : amount.toFixed(4));
};
const moment = (s) => new Date(s * 1000).toLocaleTimeString();
const percent = (share) => (share >= 0.995 && share < 1 ? "> 99 %" : share > 0 && share < 0.005 ? "< 1 %" : Math.round(share * 100) + " %");
function span(s) {
  s = Math.max(0, Math.round(s));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  return d ? `${d}d ${h}h` : h ? `${h}h ${m}m` : m ? `${m}m ${s % 60}s` : `${s}s`;
}

// --- asking -----------------------------------------------------------------------------------------------------

class Refused extends Error {}

async function ask(path) {
  const reply = await fetch(path, { headers: { Authorization: "Bearer " + sessionStorage.getItem(KEY) }, cache: "no-store" });
  if (reply.status === 401) throw new Refused("The controller refuses this token.");
  const body = await reply.json();
  if (!reply.ok) throw new Error(body.message + (body.hint ? " (" + body.hint + ")" : ""));
  return body;
}

async function every(ms, step) {
  for (;;) {
    try {
      if (!document.hidden) await step();
      trouble("");
    } catch (error) {
      if (error instanceof Refused) return closed(error.message);
      at("pulse").className = "";
      at("pulse").textContent = "no answer";
      trouble(error instanceof TypeError ? "The controller does not answer. What stands here is old." : error.message);
    }
    await new Promise((done) => setTimeout(done, ms));
  }
}

function trouble(text) {
  at("trouble").textContent = text;
  at("trouble").hidden = !text;
}

function closed(text) {
  sessionStorage.removeItem(KEY);
  trouble(text);
  at("main").hidden = true;
  at("door").hidden = false;
  at("pulse").textContent = "closed";
}

// --- showing ----------------------------------------------------------------------------------------------------

function table(id, heads, rows, none) {
  const head = el("tr", {}, ...heads.map((name) => el("th", { class: name.startsWith(">") ? "right" : "" }, name.replace(">", ""))));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, i) =>
    el("td", { class: heads[i].startsWith(">") ? "right" : "" }, ...[cell].flat()))));
  const empty = el("tr", {}, el("td", { class: "none", colspan: heads.length }, none));
  at(id).replaceChildren(...(rows.length ? [head, ...body] : [empty]));
}

const card = (name, text, kind) => el("div", { class: "card" }, el("span", { class: "soft" }, name), el("b", { class: kind || "" }, text));
const small = (text) => (text ? el("small", {}, text) : "");
const link = (text, about, subject) => el("button", { class: "link", click: () => tell(about, subject) }, text);

function show(status) {
  at("main").hidden = false;
  at("fleet").textContent = status.fleet;
  document.title = "Tradewind: " + status.fleet;
  at("pulse").className = "live";
  at("pulse").textContent = "live, up for " + span(status.uptime_s);
  at("simulated").hidden = !status.simulated;
  at("dry").hidden = !status.dry_run;
  const open = status.jobs.filter((job) => !OVER.includes(job.state));
  const spot = status.nodes.filter((node) => node.capacity === "spot").length;
  at("cards").replaceChildren(
    card("spent so far", dollars(status.cost_uusd)),
    card("now, per hour", dollars(status.price_uusd_per_h)),
    card("jobs that are open", String(open.length)),
    card("nodes, of these spot", `${status.nodes.length} / ${spot}`),
  );
  table("jobs", ["job", "state", "progress", ">loss", ">workers", "contract", ">cost"], [...status.jobs].reverse().map(job), "No jobs yet.");
  table("nodes", ["node", "where", "what", "state", ">per hour", ">cost", "jobs"], status.nodes.map(node), "No nodes: they come with demand.");
  table("cells", ["cell", "head", ">nodes", ">jobs"], status.cells.map((c) => [c.cell, c.head, String(c.nodes), String(c.jobs)]), "");
  at("cells-part").hidden = status.cells.length < 2;
  at("held-part").hidden = !status.demand.length;
  at("held").replaceChildren(...status.demand.map((line) => el("li", {}, line.what, small(line.hold))));
  at("decisions").replaceChildren(...[...status.decisions].reverse().slice(0, 20).map((line) =>
    el("li", {}, el("time", {}, moment(line.at_s)), `${line.action} ${line.subject}: `, el("span", { class: "soft" }, line.reason))));
}

function job(info) {
  const steps = info.total_steps ? `${info.step} / ${info.total_steps}` : info.step ? `step ${info.step}` : "";
  const bar = info.total_steps ? [el("progress", { value: info.step, max: info.total_steps })] : [];
  const kind = info.state === "failed" ? "bad" : info.state === "succeeded" ? "good" : "";
  const phase = info.phase && !OVER.includes(info.state) ? ", " + info.phase : "";
  return [
    [link(info.job_id, "job", info.job_id), small(info.name === info.job_id ? info.tenant : `${info.name}, ${info.tenant}`)],
    [el("span", { class: kind }, info.state + phase), small(info.reason)],
    [...bar, steps],
    info.loss === null ? "" : info.loss.toPrecision(4),
    info.max_workers ? `${info.workers} of ${info.min_workers}..${info.max_workers}` : String(info.workers || ""),
    contract(info),
    dollars(info.cost_uusd),
  ];
}

// What was promised, and how likely it is to be kept.
function contract(info) {
  const given = info.contract;
  if (!given) return "";
  const promised = [
    given.deadline_at_s === null ? "" : "by " + new Date(given.deadline_at_s * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }),
    given.budget_uusd === null ? "" : "for " + dollars(given.budget_uusd),
  ].filter(Boolean).join(", ");
  if (given.kept !== null) return [el("span", { class: given.kept ? "good" : "bad" }, given.kept ? "kept" : "not kept"), small(promised)];
  const chance = given.chance === null ? el("span", { class: "soft" }, "not known yet")
    : el("span", { class: given.chance >= 0.9 ? "good" : given.chance >= 0.5 ? "amber" : "bad" }, percent(given.chance) + " sure");
  const expected = [
    given.finish_at_s === null ? "" : "done in " + span(given.finish_at_s - Date.now() / 1000),
    given.cost_uusd === null ? "" : dollars(given.cost_uusd),
  ].filter(Boolean).join(", ");
  return [chance, small(promised), small(expected ? "expected: " + expected : given.reason), small(given.course)];
}

function node(info) {
  const devices = info.accelerator ? `${info.accelerator_count * info.hosts} x ${info.accelerator}` : "CPU";
  return [
    [link(info.launch_id, "node", info.launch_id), small(info.role === "worker" ? "" : info.role)],
    `${info.cloud} ${info.zone}`,
    [`${devices}, ${info.capacity}`, small(info.instance_type)],
    [info.state, small("for " + span(Date.now() / 1000 - info.since_s))],
    info.price_uusd_per_h === null ? "unknown" : dollars(info.price_uusd_per_h),
    dollars(info.cost_uusd),
    info.jobs.join(", "),
  ];
}

function money(summary) {
  const total = summary.total.cost_uusd;
  at("money").hidden = !total;
  if (!total) return;
  const lines = summary.lines.filter((line) => line.cost_uusd > 0);
  at("bar").replaceChildren(...lines.map((line) =>
    el("i", { title: `${line.name}: ${dollars(line.cost_uusd)}`, style: { width: (100 * line.cost_uusd) / total + "%", background: COLOURS[line.name] || "#888" } })));
  at("legend").replaceChildren(...lines.map((line) =>
    el("span", {}, el("i", { style: { background: COLOURS[line.name] || "#888" } }), `${line.name} ${dollars(line.cost_uusd)} `,
      el("span", { class: "soft" }, percent(line.cost_uusd / total)))));
}

async function tell(about, subject) {
  try {
    const story = await ask(`/v1/why/${about}/${encodeURIComponent(subject)}`);
    at("story-title").textContent = story.title;
    at("facts").replaceChildren(...story.facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
    at("lines").replaceChildren(...story.lines.map((line) => el("li", {},
      line.at_s === null ? "" : el("time", {}, moment(line.at_s)), line.what + (line.reason ? ": " : ""), el("span", { class: "soft" }, line.reason),
      line.count > 1 && line.since_s < line.at_s ? small(`${line.count} times since ${moment(line.since_s)}`) : "",
      ...line.tied.slice(0, 4).map((text) => small("as cheap: " + text)), ...line.beat.slice(0, 4).map((text) => small("beat " + text)), ...line.refused.slice(0, 4).map((text) => small("refused before: " + text)))));
    at("story").showModal();
  } catch (error) {
    trouble(error.message);
  }
}

// --- beginning --------------------------------------------------------------------------------------------------

function open() {
  at("door").hidden = true;
  every(STATUS_MS, async () => show(await ask("/v1/status")));
  every(COST_MS, async () => money(await ask("/v1/cost?by=label")));
}

at("close").addEventListener("click", () => at("story").close());
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  trouble("");
  open();
});
// The token comes behind the #, which no browser sends to anybody, and leaves the address at once.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}
if (sessionStorage.getItem(KEY)) open();
else closed("");
