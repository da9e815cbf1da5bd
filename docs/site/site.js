// What the theme leaves open for people who use a screen reader or the keyboard alone.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, number) => nav.setAttribute("aria-label", `Code block ${number + 1}`));
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((nav) => {
    const level = nav.dataset.mdLevel ?? "";
    const title = document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent.trim();
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", title ? `${title}, section` : `Section of level ${level}`);
  });
  // Regions that scroll can be reached with the keyboard.
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((region, number) => {
    if (region.scrollWidth > region.clientWidth) {
      region.tabIndex = 0;
      region.setAttribute("role", "region");
      region.setAttribute("aria-label", `${region.tagName === "CODE" ? "Code" : "Table"} ${number + 1}`);
    }
  });
  for (const cell of document.querySelectorAll("th:empty")) {
    const hidden = document.createElement("span");
    hidden.className = "site-hidden";
    hidden.textContent = "About";
    cell.append(hidden);
  }
});
