"use strict";
// The console: what is served, what is spent, and a form to try a query. It talks to its own service only.

const REFRESH = 5000;
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const state = { key: null, me: null, models: [], open: null, spending: null, timer: null };

const small = (value) => (value > 0 && value < 1e-3 ? value.toExponential() : short.format(value));

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${state.key}`, ...(options.headers || {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service cannot be reached.");
  }
  const document = await response.json();
  if (!response.ok) {
    const error = new Error(document.detail || `The service answered ${response.status}.`);
    error.status = response.status;
    throw error;
  }
  return document;
}

function say(text) { $("status").textContent = text; }

// ---- Door

async function enter(key) {
  state.key = key;
  const listed = await ask("/v1/models");
  sessionStorage.setItem("key", key);
  state.me = listed;
  state.models = listed.models;
  $("who").textContent = `${listed.client}${listed.operator ? " (operator)" : ""}`;
  for (const id of ["who", "leave", "house"]) $(id).hidden = false;
  $("door").hidden = true;
  $("refused").textContent = "";
  say("");
  showModels();
  if (state.models.length) await open(state.models[0].name);
  clearInterval(state.timer);
  state.timer = setInterval(refresh, REFRESH);
}

function leave() {
  say("");
  sessionStorage.removeItem("key");
  clearInterval(state.timer);
  Object.assign(state, { key: null, me: null, models: [], open: null });
  for (const id of ["who", "leave", "house"]) $(id).hidden = true;
  $("model").replaceChildren();
  $("door").hidden = false;
  $("key").value = "";
  $("key").focus();
}

// ---- Models

const TONE = {
  proven: "good", "weaker than claimed": "warn", "nothing proven": "warn", refuted: "bad",
  signed: "good", "not checked": "warn", "not signed": "warn", changed: "bad",
};

function showModels() {
  $("models").replaceChildren(...state.models.map((model) => {
    const button = element("button", model.name, { type: "button", "data-model": model.name });
    button.append(element("small", `${model.method} · ${model.verdict} · ${model.signature.status}`));
    button.addEventListener("click", () => open(model.name).catch(trouble));
    const item = element("li");
    item.append(button);
    return item;
  }));
}

$("models").addEventListener("keydown", (event) => {
  const buttons = [...$("models").querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  buttons[Math.max(0, Math.min(buttons.length - 1, to))].focus();
});

async function open(name) {
  const model = await ask(`/v1/models/${encodeURIComponent(name)}`);
  state.open = model;
  state.spending = null;
  for (const button of $("models").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(button.dataset.model === name));
  }
  const page = $("page").content.cloneNode(true).firstElementChild;
  page.querySelector(".name").textContent = model.name;
  const lead = page.querySelector(".lead");
  lead.append(`${model.method}: `, element("strong", model.verdict, { class: TONE[model.verdict] || "" }));
  lead.append(model.price
    ? `. Every answer costs privacy, ${model.basis === "proven" ? "as proven" : "as its authors claim (not proven)"}.`
    : ". Answers cost nothing more.");
  showCard(page, model);
  showExports(page, model);
  showVerification(page, model);
  page.querySelector(".period").addEventListener("change", () => refresh().catch(trouble));
  tryForm(page, model);
  manageForm(page, model);
  $("model").replaceChildren(page);
  await refresh();
}

function showCard(page, model) {
  const { card } = model;
  const promise = (value) => (value ? `ε ${short.format(value.epsilon)}, δ ${small(value.delta)}` : "—");
  const facts = [
    ["Claimed", promise(card.claimed)],
    ["Proven", card.proven ? `${promise(card.proven)} (${card.proven.accountant})` : `nothing: ${card.why}`],
    ["Audited", card.audited ? `at least ${promise(card.audited)} (${Math.round(100 * card.audited.confidence)}% confidence)` : "not yet"],
    ["Hides", `one ${card.unit}, ${card.neighbours}`],
    ["Randomness", card.randomness],
    ["Signature", model.signature.sentence],
    ...card.notes.map((note) => ["Note", note]),
  ];
  page.querySelector("dl").append(...facts.map(([term, text]) => {
    const pair = element("div");
    pair.append(element("dt", term), element("dd", text));
    return pair;
  }));
  page.querySelector("pre").textContent = JSON.stringify(card, null, 2);
}

function save(name, kind, text) {
  const link = element("a", null, { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function showVerification(page, model) {
  const { status, sentence, by } = model.signature;
  page.querySelector(".signature").append(element("strong", `The bundle is ${status}. `, { class: TONE[status] }),
    `${sentence}${by && status === "signed" ? ` The whole key: ${by}.` : ""}`);
  const button = page.querySelector(".check-ledger");
  const says = page.querySelector(".checked");
  button.hidden = !(state.me.operator && model.price);
  button.addEventListener("click", async () => {
    button.disabled = true;
    says.className = "checked";
    says.textContent = "Replaying every entry …";
    try {
      const found = await ask(`/v1/models/${encodeURIComponent(model.name)}/verification`);
      says.className = `checked ${found.holds ? "good" : "bad"}`;
      says.textContent = found.holds
        ? `The history holds: ${number.format(found.entries)} entries, ${number.format(found.answers)} answers, never overdrawn. Note its last hash elsewhere, since a history that was cut off looks whole by itself: ${found.head}`
        : `The history does not hold: ${found.problems.join(" ")}`;
    } catch (error) {
      says.className = "checked bad";
      says.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });
}

function showExports(page, model) {
  page.querySelector(".export-card").addEventListener("click", () =>
    save(`${model.name}-card.json`, "application/json", JSON.stringify(model.card, null, 2)));
  const time = page.querySelector(".export-time");
  time.hidden = !model.price;
  time.addEventListener("click", () => {
    const { starts, answers } = state.spending || { starts: [], answers: [] };
    const lines = starts.map((start, i) => `${new Date(1000 * start).toISOString()},${answers[i]}`);
    save(`${model.name}-answers.csv`, "text/csv", ["start,answers", ...lines, ""].join("\n"));
  });
  page.querySelector(".export-entries").addEventListener("click", async () => {
    try {
      const { entries } = await ask(`/v1/models/${encodeURIComponent(model.name)}/entries?most=10000`);
      const lines = entries.map((one) => [one.sequence, one.made_at, JSON.stringify(one.client), one.answers, one.receipt, one.hash].join(","));
      save(`${model.name}-history.csv`, "text/csv", ["entry,time,client,answers,receipt,hash", ...lines, ""].join("\n"));
    } catch (error) {
      trouble(error);
    }
  });
  page.querySelector(".commands").textContent = [
    "noiseproof ledger verify", "noiseproof ledger export --out history.jsonl", "noiseproof verify BUNDLE --key vendor.pem.pub --recompute",
  ].join("\n");
}

// ---- Budget, time, clients

async function refresh() {
  const page = $("model").firstElementChild;
  if (!state.open || !page || document.hidden) return;
  const { name, price } = state.open;
  const path = `/v1/models/${encodeURIComponent(name)}`;
  if (!price) {
    page.querySelector(".bars").replaceChildren(element("p", "This model has no budget: its weights were made private, so that any number of answers is."));
    page.querySelector(".time").hidden = true;
    return;
  }
  const period = page.querySelector(".period").value;
  const [budget, spending, clients, history] = await Promise.all([
    ask(`${path}/budget`),
    ask(`${path}/spending?period=${period}`),
    state.me.operator ? ask(`${path}/clients`) : null,
    state.me.operator ? ask(`${path}/entries?most=20`) : null,
  ]);
  if (state.open.name !== name) return;
  const left = Math.min(budget.everyone.answers_left, budget.own.answers_left);
  const bars = [bar("Everyone together", budget.everyone, "", `${number.format(budget.everyone.answers_left)} answers left`)];
  bars.push(bar(`${budget.client} alone`, budget.own, "own", `can have ${number.format(left)} more`));
  page.querySelector(".bars").replaceChildren(...bars);
  // Operators see everybody's answers over time, others their own.
  const whole = state.me.operator ? budget.everyone : budget.own;
  state.spending = { ...spending, spent: whole.answers_spent, limit: whole.answers_limit };
  draw();
  if (clients) showClients(page, clients.clients, budget.everyone.answers_limit);
  if (history) showEntries(page, history.entries);
  say("");
}

function draw() {
  const place = document.querySelector(".chart");
  if (!place || !state.spending) return;
  const { spent, limit } = state.spending;
  const key = `Bars: answers. Line: what was spent in all; now ${short.format(limit ? 100 * spent / limit : 100)}% of the budget.`;
  place.replaceChildren(chart(state.spending, place.clientWidth || 800), element("p", key, { class: "soft" }));
}

function bar(what, balance, kind, left) {
  const share = balance.answers_limit ? balance.answers_spent / balance.answers_limit : 1;
  const whole = element("div", null, { class: `bar ${kind}` });
  const line = element("div", null, { class: "what" });
  const text = `${number.format(balance.answers_spent)} of ${number.format(balance.answers_limit)} answers`;
  line.append(element("strong", what), element("span", text));
  const trough = element("div", null, {
    class: "trough", role: "progressbar", "aria-label": `${what}: share of the budget that is spent`,
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share), "aria-valuetext": text,
  });
  const fill = element("div");
  fill.style.width = `${100 * share}%`;
  trough.append(fill);
  const { spent, limit, delta } = balance.epsilon;
  const epsilon = (value) => (value === null ? "∞" : short.format(value));
  const note = `ε ${epsilon(spent)} of ${epsilon(limit)} at δ ${small(delta)} · ${left}`;
  whole.append(line, trough, element("small", note));
  return whole;
}

function chart({ starts, answers, seconds, spent, limit }, width) {
  const SVG = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(SVG, "svg");
  const make = (tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
    return made;
  };
  const [height, left, top, bottom] = [220, 52, 12, 28];
  const most = Math.max(1, ...answers);
  const total = answers.reduce((sum, value) => sum + value, 0);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${number.format(total)} answers in this period, at most ${number.format(most)} in one interval; ${number.format(spent)} of ${number.format(limit)} are spent.`);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  for (const value of [0, most]) {
    make("line", { x1: left, x2: width, y1: y(value), y2: y(value) });
    make("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number.format(value));
  }
  const step = (width - left) / answers.length;
  const day = seconds >= 3600;
  const label = (start) => new Date(1000 * start).toLocaleString("en-GB", day
    ? { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }
    : { hour: "2-digit", minute: "2-digit" });
  answers.forEach((value, i) => {
    if (!value) return;
    const rect = make("rect", {
      class: "answers", x: left + i * step + 1, width: Math.max(1, step - 2), y: y(value), height: y(0) - y(value), rx: 1.5,
    });
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${label(starts[i])}: ${number.format(value)} answers`;
    rect.append(title);
  });
  // What was spent in all, as a share of the budget: it ends at today's and goes back by what was answered since.
  let sofar = spent - total;
  const share = (value) => top + (height - top - bottom) * (1 - (limit ? value / limit : 1));
  const course = answers.map((value, i) => `${left + (i + 1) * step} ${share(sofar += value)}`);
  if (course.length) make("path", { class: "course", d: `M${left} ${share(spent - total)}L${course.join("L")}` });
  for (const [i, anchor] of [[0, "start"], [Math.floor(starts.length / 2), "middle"], [starts.length - 1, "end"]]) {
    make("text", { x: anchor === "end" ? width : left + i * step, y: height - 8, "text-anchor": anchor }, label(starts[i]));
  }
  return svg;
}

function showClients(page, clients, everyone) {
  const section = page.querySelector(".clients");
  section.hidden = false;
  section.querySelector("tbody").replaceChildren(...clients.map((client) => {
    const row = element("tr");
    row.append(element("td", client.client), element("td", number.format(client.answers_spent), { class: "number" }),
      element("td", number.format(client.answers_limit), { class: "number" }),
      element("td", `${short.format(everyone ? 100 * client.answers_spent / everyone : 0)}%`, { class: "number" }));
    return row;
  }));
  if (!clients.length) {
    const row = element("tr");
    row.append(element("td", "Nobody has asked yet.", { colspan: 4 }));
    section.querySelector("tbody").replaceChildren(row);
  }
}

// ---- Close and retire

function manageForm(page, model) {
  const section = page.querySelector(".manage");
  const told = section.querySelector(".managed");
  section.hidden = !state.me.operator;
  section.querySelector("[value=close]").hidden = !model.price;
  section.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const what = event.submitter.value;
    if (section.querySelector("input").value !== model.name) {
      told.textContent = "Type the name of this model first.";
      return;
    }
    try {
      await ask(`/v1/models/${encodeURIComponent(model.name)}/${what}`, { method: "POST" });
      told.textContent = what === "close" ? "The budget is closed." : "The model is retired.";
      await refresh();
    } catch (error) {
      told.textContent = error.message;
    }
  });
}

function showEntries(page, entries) {
  page.querySelector(".entries tbody").replaceChildren(...entries.map((one) => {
    const row = element("tr");
    const time = new Date(one.made_at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
    row.append(element("td", time), element("td", one.client), element("td", number.format(one.answers), { class: "number" }),
      element("td", number.format(one.sequence), { class: "number" }));
    return row;
  }));
  page.querySelector(".entries").hidden = !entries.length;
}

// ---- Try a query

function nested(shape, make) {
  return shape.length ? Array.from({ length: shape[0] }, () => nested(shape.slice(1), make)) : make();
}

function sample(column) {
  if (column.categories.length) return column.categories[0];
  if (column.text) return "some words";
  if (column.date) return new Date(864e5 * Math.round((column.low + column.high) / 2)).toISOString().slice(0, 10);
  const middle = (column.low + column.high) / 2;
  return column.integer ? Math.round(middle) : middle;
}

function tryForm(page, model) {
  const form = page.querySelector(".try form");
  const area = form.querySelector("textarea");
  const id = "query";
  area.id = id;
  const shown = model.shape.join(" × ");
  const asked = form.querySelector(".asked");
  asked.setAttribute("for", id);
  asked.textContent = model.columns.length
    ? "One record as JSON, by the names of the table’s columns; null where a value is missing"
    : `One input as JSON: ${shown} numbers between 0 and 1`;
  const button = form.querySelector("button[type=submit]");
  button.textContent = model.price ? "Ask (spends one answer)" : "Ask";
  let example = null;
  form.querySelector(".fill").addEventListener("click", () => {
    example = model.columns.length
      ? JSON.stringify(Object.fromEntries(model.columns.map((column) => [column.name, sample(column)])), null, 1)
      : JSON.stringify(nested(model.shape, () => Math.round(100 * Math.random()) / 100));
    area.value = example;
    area.focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const says = form.querySelector(".says");
    const place = page.querySelector(".answer");
    says.className = "says";
    place.replaceChildren();
    if (model.price && area.value === example) {
      says.className = "says bad";
      says.textContent = "This is the made-up example, which is not worth an answer; put in a record of your own.";
      area.focus();
      return;
    }
    let input;
    try {
      input = JSON.parse(area.value);
    } catch {
      says.className = "says bad";
      says.textContent = "This is not JSON; press “Fill with an example” to see how it looks.";
      area.focus();
      return;
    }
    button.disabled = true;
    try {
      const answer = await ask(`/v1/models/${encodeURIComponent(model.name)}/predictions`, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ inputs: [input] }),
      });
      says.textContent = `Label: ${answer.labels[0]}.` + (answer.receipt
        ? ` Receipt ${answer.receipt.id}, entry ${answer.receipt.sequence}; ${number.format(answer.remaining.answers)} answers left. Its hash, to be noted elsewhere: ${answer.receipt.hash}`
        : answer.cost ? " A repeat: it cost nothing." : "");
      if (answer.classes.length) place.replaceChildren(probabilities(answer));
      await refresh();
    } catch (error) {
      says.className = "says bad";
      says.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });
}

function probabilities(answer) {
  const table = element("table");
  table.append(element("caption", "Probabilities"));
  const head = element("tr");
  head.append(element("th", "Class", { scope: "col" }), element("th", "Probability", { scope: "col", class: "number" }));
  const rows = answer.classes.map((name, i) => [name, answer.probabilities[0][i]]).sort((a, b) => b[1] - a[1]).slice(0, 10);
  table.append(head, ...rows.map(([name, value]) => {
    const row = element("tr");
    row.append(element("td", name), element("td", value.toFixed(4), { class: "number" }));
    return row;
  }));
  return table;
}

// ---- Start

function trouble(error) {
  if (error.status === 401) leave();
  if ($("door").hidden) say(error.message);
  else refuse(error);
}

// Why somebody could not sign in, for people who have never heard of a header.
const REFUSED = {
  401: "This key is not valid here: it was mistyped, revoked, or made for another ledger. Check that all of it was copied.",
  429: "Too many attempts. Wait a minute, then try again.",
  503: "The ledger cannot be reached, so no key can be checked. Try again soon, or ask whoever runs the service.",
};

function refuse(error) {
  $("refused").textContent = REFUSED[error.status] || error.message;
  $("key").setAttribute("aria-invalid", "true");
  $("key").focus();
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", String(dark));
}

const system = matchMedia("(prefers-color-scheme: dark)");
theme(system.matches);
system.addEventListener("change", () => theme(system.matches));
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));
$("leave").addEventListener("click", () => { leave(); say(""); });
$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  enter($("key").value.trim()).catch(trouble);
});
addEventListener("resize", draw);
const kept = sessionStorage.getItem("key");
if (kept) enter(kept).catch(trouble);
else $("key").focus();
