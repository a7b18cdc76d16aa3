// Before anything is drawn: the theme that was chosen last.
try {
  const theme = localStorage.getItem("forewarn-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* nothing may be kept here: the system's theme it is */ }
