import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { App } from "./app";
import { Report, Server, takeToken } from "./source";
import "./style.css";

// A new address of the same server, opened in the same tab, is no new page by itself.
addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());

const place = document.getElementById("app");
if (place !== null) render(<App source={Report.find() ?? new Server(takeToken())} />, place);
