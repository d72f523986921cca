// One round across its clients: when each downloaded, computed, uploaded and waited.
import { phaseColour } from "../colour";
import { duration, label } from "../format";
import { column, number, type Columns } from "../model";

const PHASES = ["download_ms", "compute_ms", "upload_ms"];
const NAMES: Record<string, string> = { download_ms: "download", compute_ms: "compute", upload_ms: "upload" };

interface Drawn {
  columns: Columns;
  onPick: (client: string) => void;
}

export function Waterfall({ columns, onPick }: Drawn) {
  const numbers = (name: string): (number | null)[] => column(columns, name).map(number);
  const clients = column(columns, "client").map(String);
  const starts = numbers("start_ms");
  const durations = numbers("duration_ms");
  const waits = numbers("wait_ms");
  const isCritical = column(columns, "is_critical");
  const status = column(columns, "status");
  const phases = PHASES.map(numbers);
  const end = Math.max(...clients.map((_, row) => (starts[row] ?? 0) + (durations[row] ?? 0) + (waits[row] ?? 0)), 1e-9);
  const percent = (ms: number): string => `${(ms / end) * 100}%`;
  const ticks = ticksUpTo(end);
  const [round] = column(columns, "round");
  const named = `${Math.min(22, Math.max(...clients.map((name) => name.length), 3)) + 1}ch`;
  return (
    <div class="waterfall" style={{ "--named": named }}>
      <div class="legend-steps">
        {PHASES.map((phase, index) => (
          <span key={phase}>
            <i style={{ background: phaseColour(NAMES[phase] ?? "", index) }} />
            {NAMES[phase]}
          </span>
        ))}
        <span>
          <i class="wait" />
          waiting for the last
        </span>
        <span>
          <i class="critical" />
          critical path
        </span>
        <span class="muted">round {String(round ?? "")}, {duration(end)}</span>
      </div>
      <div class="waterfall-rows">
        {clients.map((client, row) => {
          let from = starts[row] ?? 0;
          const total = durations[row] ?? 0;
          const known = phases.map((phase) => phase[row] ?? 0);
          const rest = Math.max(0, total - known.reduce((a, b) => a + b, 0));
          return (
            <button
              key={client}
              type="button"
              class={`waterfall-row${isCritical[row] === true ? " is-critical" : ""}`}
              onClick={() => onPick(client)}
              title={`${client}: ${PHASES.map((phase, index) => `${NAMES[phase]} ${duration(known[index] ?? 0)}`).join(", ")}; ${status[row]}`}
            >
              <span class="waterfall-name">{label(client)}</span>
              <span class="waterfall-track">
                {known.map((ms, index) => {
                  const left = from;
                  from += ms;
                  const colour = phaseColour(NAMES[PHASES[index] ?? ""] ?? "", index);
                  return ms > 0 && <i key={PHASES[index]} style={{ left: percent(left), width: percent(ms), background: colour }} />;
                })}
                {rest > 0 && <i class="rest" style={{ left: percent(from), width: percent(rest) }} />}
                {(waits[row] ?? 0) > 0 && <i class="wait" style={{ left: percent(from + rest), width: percent(waits[row] ?? 0) }} />}
              </span>
              <span class="waterfall-said">{isCritical[row] === true ? "critical path" : status[row] === "ok" ? duration(total) : String(status[row])}</span>
            </button>
          );
        })}
      </div>
      <div class="waterfall-axis" aria-hidden="true">
        <span class="waterfall-name" />
        <span class="waterfall-track">
          {ticks.map((tick) => (
            <em key={tick} style={{ left: percent(tick) }}>
              {tick === 0 ? "0" : duration(tick)}
            </em>
          ))}
        </span>
        <span class="waterfall-said" />
      </div>
    </div>
  );
}

function ticksUpTo(end: number): number[] {
  const rough = end / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough) ?? rough;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}
