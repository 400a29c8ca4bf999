// Live updates. Without this script, a reload of the page shows the same.
"use strict";
(() => {
  const main = document.getElementById("main");
  const status = document.getElementById("live");
  const pause = document.getElementById("pause");
  const events = main && main.dataset.events;
  if (!events || !window.EventSource || !status || !pause) return;
  let source = null;
  let timer = 0;
  let busy = false;
  let again = false;
  let paused = false;
  let delay = 1000;
  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  // Replaces the parts that differ, unless the focus is in one of them.
  const show = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    for (const part of main.querySelectorAll("[data-part]")) {
      const name = CSS.escape(part.dataset.part);
      const other = next.querySelector(`[data-part="${name}"]`);
      if (!other || part.contains(document.activeElement)) continue;
      const open = [...part.querySelectorAll("details")].map((one) => one.open);
      other.querySelectorAll("details").forEach((one, at) => { if (at < open.length) one.open = open[at]; });
      if (part.innerHTML !== other.innerHTML) part.replaceChildren(...other.childNodes);
      if (part.className !== other.className) part.className = other.className;
    }
  };

  const refresh = async () => {
    timer = 0;
    if (busy) { again = true; return; }
    busy = true;
    const since = performance.now();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (answer.status === 401) { location.reload(); return; }
      show(await answer.text());
      say(answer.ok ? "Live" : "The replica answers with an error");
    } catch {
      say("The replica does not answer");
    }
    // A console takes at most a twentieth of the time of a replica.
    delay = Math.max(1000, 20 * (performance.now() - since));
    busy = false;
    if (again) { again = false; plan(); }
  };
  const plan = () => { if (!timer && !paused) timer = setTimeout(refresh, delay); };

  const open = () => {
    if (source || paused || document.hidden) return;
    source = new EventSource(events);
    source.addEventListener("change", plan);
    source.onopen = () => say("Live");
    source.onerror = () => {
      say("The connection is lost; the page may be old");
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 10000); }
    };
  };
  const close = () => { if (source) source.close(); source = null; };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); } else { plan(); open(); }
  });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume live updates" : "Pause live updates";
    if (paused) { close(); say("Paused"); } else { plan(); open(); }
  });
  open();
})();
