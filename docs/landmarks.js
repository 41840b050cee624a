// Material puts a nameless <nav> on every block of code, which a screen reader would list as a landmark of the page.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "none");
}).observe(document.documentElement, { childList: true, subtree: true });
