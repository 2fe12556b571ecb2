// Writes a notice about an order, and signs it.
import { createHmac } from "crypto";
import { plural } from "berth-demo-words";

enum Tone {
  Plain = "plain",
  Loud = "loud",
}

declare const globalThis: { noticed?: string };

export async function notice(item: string, count: number, tone?: Tone) {
  const first = globalThis.noticed === undefined;
  globalThis.noticed = process.env.DEMO_KEY; // which no later run may find
  const text = `${count} ${plural(item, count)} on the way`;
  console.log("noticed", count, item);
  return {
    text: tone === Tone.Loud ? text.toUpperCase() + "!" : text,
    first,
    signature: createHmac("sha256", `${process.env.DEMO_KEY}${process.env.DEMO_TOKEN}`).update(item).digest("hex"),
  };
}
