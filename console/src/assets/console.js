// The only script of the console. Without it every page shows the state at the time of its loading.
"use strict";
(function () {
  const root = document.documentElement;
  const THEME = "ebla-theme";

  function stored() {
    try { return localStorage.getItem(THEME); } catch (refused) { return null; }
  }
  function isDark() {
    const theme = root.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  if (stored()) root.dataset.theme = stored();

  function toggleTheme() {
    const next = isDark() ? "light" : "dark";
    root.dataset.theme = next;
    try { localStorage.setItem(THEME, next); } catch (refused) { /* the choice holds for this page */ }
  }

  // Replaces the live parts with the server's rendering, once a second.
  function follow(state) {
    const here = location.pathname + location.search;
    const source = new EventSource("/live?page=" + encodeURIComponent(here));
    const show = (name, text) => { state.dataset.state = name; state.textContent = text; };
    source.addEventListener("parts", (event) => {
      const parts = JSON.parse(event.data);
      for (const part of document.querySelectorAll("[data-live]")) {
        const html = parts[part.dataset.live];
        // What has the focus or is selected is replaced with the next change.
        if (html !== undefined && !part.contains(document.activeElement)) part.innerHTML = html;
      }
      show("live", "live");
    });
    source.addEventListener("failed", (event) => show("failed", JSON.parse(event.data)));
    source.onerror = () => {
      // The browser tries again, except after a refusal.
      if (source.readyState !== EventSource.CLOSED) show("lost", "no answer from this console; the page shows its last state");
      else show("ended", "not live: the page shows its last state; load it again");
    };
    addEventListener("pagehide", () => source.close());
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("button[data-theme-toggle]")) {
      button.hidden = false;
      button.addEventListener("click", toggleTheme);
    }
    for (const button of document.querySelectorAll("button[data-copy]")) {
      if (!navigator.clipboard) continue;
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
    for (const form of document.querySelectorAll("form[data-confirm]")) {
      form.addEventListener("submit", (event) => {
        if (!confirm(form.dataset.confirm)) event.preventDefault();
      });
    }
    const state = document.getElementById("live-state");
    if (state && document.querySelector("[data-live]") && window.EventSource) follow(state);
  });
})();
