import { defineConfig } from "vite";

// One script and one style sheet, nothing inline: the server's content security policy allows no more,
// and the report puts both into a single file.
export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/stethos/web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    target: "es2022",
    chunkSizeWarningLimit: 400,
  },
});
