// Runs before anything is drawn, so that the page does not flash in the other theme.
try {
  const theme = localStorage.getItem("forewarn-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled: the system's theme applies */ }
