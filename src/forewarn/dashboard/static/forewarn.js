// Countdowns, the timeline, the theme, and the notice of a lost connection. Pages can be read without it.
"use strict";
(() => {
  const meta = document.querySelector('meta[name="forewarn-now"]');
  const isVirtual = meta !== null && "virtual" in meta.dataset;
  let offset = meta === null ? 0 : Date.parse(meta.content) - Date.now();
  let frozenAt = meta === null ? Date.now() : Date.parse(meta.content);
  const now = () => (isVirtual ? frozenAt : Date.now() + offset);

  // Virtual time arrives with the live part: it moves only when an operator advances it.
  function thaw() {
    const instant = document.getElementById("instant");
    if (instant !== null) frozenAt = Date.parse(instant.value);
  }

  // Countdowns

  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function span(seconds) {
    const parts = [];
    let rest = Math.floor(seconds);
    for (const [unit, size] of units) {
      const amount = Math.floor(rest / size);
      rest -= amount * size;
      if (amount) parts.push(`${amount} ${unit}`);
    }
    return parts.slice(0, 2).join(" ");
  }

  // A sentence that says what will happen until a time is wrong with a time in the past: then the page is being renewed.
  function relative(at, isAhead) {
    const distance = (at - now()) / 1000;
    const seconds = isAhead ? Math.max(distance, 0) : distance;
    const words = span(Math.abs(seconds));
    if (!words) return "now";
    return seconds > 0 ? `in ${words}` : `${words} ago`;
  }

  function clock(at) {
    return `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;
  }

  function tick() {
    for (const each of document.querySelectorAll("time[data-countdown]")) {
      const text = relative(Date.parse(each.dateTime), each.dataset.countdown === "until");
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("time[data-clock]")) each.textContent = clock(now());
  }

  // Theme

  document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("forewarn-theme", root.dataset.theme); } catch { /* storage is disabled: the choice lasts for this page */ }
  });

  // Timeline

  let timeline = null;
  let rows = null;
  let bars = null;
  let drawn = "";

  function draw() {
    const place = document.getElementById("timeline");
    const source = document.getElementById("timeline-data");
    if (place === null || source === null || typeof vis === "undefined") return;
    if (source.textContent === drawn) return;
    drawn = source.textContent;
    const data = JSON.parse(drawn);
    if (data.bars.length === 0 && timeline === null) return;
    if (timeline === null) start(place, data);
    fit(rows, data.rows);
    fit(bars, data.bars.map((bar) => ({ ...bar, title: undefined })));
    place.dataset.bars = String(data.bars.length);
    timeline.setCurrentTime(now());
  }

  function fit(set, wanted) {
    const ids = new Set(wanted.map((each) => each.id));
    set.remove(set.getIds().filter((id) => !ids.has(id)));
    set.update(wanted);
  }

  function start(place, data) {
    rows = new vis.DataSet();
    bars = new vis.DataSet();
    const spans = data.bars.flatMap((bar) => [Date.parse(bar.start), Date.parse(bar.end ?? bar.start)]);
    const first = Math.max(Math.min(now(), ...spans), now() - 45 * 60e3) - 2 * 60e3;
    const last = Math.min(Math.max(now() + 20 * 60e3, ...spans), now() + 6 * 3600e3) + 5 * 60e3;
    timeline = new vis.Timeline(place, bars, rows, {
      start: first,
      end: last,
      stack: true,
      stackSubgroups: true,
      showCurrentTime: true,
      zoomKey: "ctrlKey",
      zoomMin: 60e3,
      zoomMax: 400 * 86400e3,
      maxHeight: Math.max(420, Math.round(innerHeight * 0.7)),
      verticalScroll: true,
      orientation: "top",
      margin: { item: { horizontal: 0, vertical: 4 }, axis: 6 },
      moment: (date) => vis.moment(date).utc(),
      groupOrder: "content",
      locale: "en",
    });
    timeline.on("click", (properties) => {
      const bar = properties.item === null ? null : bars.get(properties.item);
      if (bar?.href) location.assign(bar.href);
    });
    timeline.on("itemover", (properties) => {
      const bar = bars.get(properties.item);
      place.title = bar?.tip ?? "";
    });
    timeline.on("itemout", () => { place.title = ""; });
    // vis-timeline stays hidden until its next redraw, which would otherwise wait for its clock to tick.
    const settled = () => { timeline.off("rangechanged", settled); timeline.redraw(); };
    timeline.on("rangechanged", settled);
  }

  // Notice of a lost connection

  const offline = document.querySelector(".offline");
  let isGone = false;

  function lost(is) {
    isGone = is;
    if (offline !== null) offline.hidden = !is;
    document.documentElement.classList.toggle("is-offline", is);
  }

  document.addEventListener("htmx:sse:error", (event) => {
    lost(true);
    if (event.detail?.status === 401) location.reload();
  });
  document.addEventListener("htmx:sse:after:connection", () => lost(false));
  document.addEventListener("htmx:sse:close", (event) => {
    if (event.detail?.reason === "ended") lost(true);
  });
  document.addEventListener("htmx:after:swap", () => { if (isGone) lost(false); thaw(); tick(); draw(); });

  tick();
  draw();
  setInterval(tick, 1000);
  if (!isVirtual) setInterval(() => timeline?.setCurrentTime(now()), 10000);
})();
