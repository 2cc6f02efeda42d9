// The page of `t2t serve`: an image goes to the server, the evidence comes back.

import { drawAttention, drawOcclusion, loadPicture, whereMost } from "./drawing.js";

const TOKEN = "t2t-token";
const OCCLUDED = 81; // images whose predictions an occlusion map needs, at most
const QUICK_SECONDS = 4; // an occlusion map is measured without asking if it takes less
const SHRUNK_SIDE = 2048;

const get = (id) => document.getElementById(id);
let limits = { max_upload_bytes: Infinity };
let numClasses = Infinity;
let current = null; // the image that is shown, and what is known of it
let stopping = new AbortController();

class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

// ── the server ──────────────────────────────────────────────────────────────────────

/** The reply to a request; throws a Refusal with the server's sentence. */
async function ask(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    const token = sessionStorage.getItem(TOKEN);
    if (token) headers.Authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The server cannot be reached: is it still running?");
    }
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN);
      await askForToken();
      continue;
    }
    const reply = await response.json().catch(() => null);
    if (!response.ok || reply === null) {
      const sentence = reply?.error ?? `The server answered with ${response.status}.`;
      throw new Refusal(response.status, sentence);
    }
    return reply;
  }
}

/** Takes the token from the address, which is shortened so that it is not shared. */
function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

let asking = null;

function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = get("token-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(TOKEN, get("token").value.trim());
      get("token").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

function post(path, image, signal) {
  return ask(path, { method: "POST", body: image, signal, headers: { "Content-Type": "application/octet-stream" } });
}

async function describeModel() {
  const model = await ask("model");
  limits = model.limits;
  numClasses = model.num_classes;
  const [height, width] = model.image_size;
  const parts = [
    model.data && `trained on ${model.data}`,
    `${model.num_classes.toLocaleString("en")} classes`,
    `${height}\u00a0×\u00a0${width} pixels`,
    model.device.toUpperCase(),
  ];
  get("model").textContent = model.name;
  get("about").textContent = parts.filter(Boolean).join(" · ");
  if (model.multilabel) get("predictions-title").textContent = "Labels";
  document.title = `${model.name} · t2t`;
}

// ── an image ────────────────────────────────────────────────────────────────────────

/** Shows an image and everything that the server finds in it. */
async function show(image) {
  stopping.abort();
  stopping = new AbortController();
  const { signal } = stopping;
  complain("");
  reset(image);
  try {
    current.image = await smallEnough(image);
    const started = performance.now();
    const found = await predict(signal);
    showPredictions(found.predictions);
    showTiming(found, performance.now() - started);
    say(`${percent(found.predictions[0])} ${found.predictions[0].name}.`);
    current.perImage = found.milliseconds.model / found.batch_size;
    await explain(signal);
    await offerOcclusion(signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    complain(error.message);
    if (!current.predictions) get("results").hidden = true;
  } finally {
    if (!signal.aborted) document.body.removeAttribute("aria-busy");
  }
}

async function predict(signal) {
  const path = `predict?top=${Math.min(numClasses, 20)}`;
  try {
    return await post(path, current.image, signal);
  } catch (refusal) {
    // Browsers read some formats that the server does not, such as a phone's HEIC.
    if (![415, 422].includes(refusal.status)) throw refusal;
    const converted = await asJpeg(current.image).catch(() => null);
    if (converted === null) throw refusal;
    current.image = converted;
    return post(path, converted, signal);
  }
}

async function smallEnough(image) {
  if (image.size <= limits.max_upload_bytes) return image;
  const smaller = await asJpeg(image).catch(() => null);
  if (smaller === null || smaller.size > limits.max_upload_bytes) {
    const megabytes = limits.max_upload_bytes / 1e6;
    throw new Refusal(413, `The file is larger than ${megabytes} MB, the most that the server takes.`);
  }
  return smaller;
}

/** The image as a JPEG of moderate size, made by the browser. */
async function asJpeg(image) {
  const bitmap = await createImageBitmap(image);
  const scale = Math.min(1, SHRUNK_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no JPEG"))), "image/jpeg", 0.92);
  });
}

function reset(image) {
  if (current) URL.revokeObjectURL(current.url);
  current = { image, url: URL.createObjectURL(image), chosen: null };
  document.body.classList.add("busy-or-done");
  document.body.setAttribute("aria-busy", "true");
  get("results").hidden = false;
  get("preview").src = current.url;
  for (const id of ["seen", "timing", "attention", "occlusion", "tokens", "notes", "measure-box"]) get(id).hidden = true;
  get("predictions").replaceChildren();
  say("Predicting …");
}

// ── predictions ─────────────────────────────────────────────────────────────────────

function percent({ probability }) {
  return `${(100 * probability).toFixed(1)} %`;
}

function showPredictions(predictions) {
  current.predictions = predictions;
  current.chosen ??= predictions[0];
  const rows = predictions.slice(0, Number(get("top").value)).map((each) => {
    const row = document.createElement("li");
    const button = document.createElement("button");
    const [name, share, bar] = ["span", "span", "i"].map((kind) => document.createElement(kind));
    name.textContent = each.predicted ? `✓ ${each.name}` : each.name;
    share.textContent = percent(each);
    bar.style.width = `${100 * each.probability}%`;
    button.type = "button";
    button.title = `Explain ${each.name}`;
    button.setAttribute("aria-pressed", String(each.index === current.chosen.index));
    button.append(name, share, bar);
    button.addEventListener("click", () => choose(each));
    row.append(button);
    return row;
  });
  get("predictions").replaceChildren(...rows);
}

function showTiming(found, whole) {
  const times = found.milliseconds;
  const rows = [
    ["decode", times.decode], ["wait", times.wait], ["model", times.model], ["round trip", whole],
  ];
  get("timing").replaceChildren(...rows.map(([name, value]) => {
    const pair = document.createElement("div");
    const [term, time] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    time.textContent = `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
    pair.append(term, time);
    return pair;
  }));
  get("timing").hidden = false;
}

async function choose(predicted) {
  if (predicted.index === current.chosen.index) return;
  current.chosen = predicted;
  const number = [...get("predictions").children].findIndex((row) => row.contains(document.activeElement));
  showPredictions(current.predictions);
  get("predictions").children[number]?.firstChild.focus();
  try {
    await offerOcclusion(stopping.signal);
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
  }
}

// ── evidence ────────────────────────────────────────────────────────────────────────

async function explain(signal) {
  const evidence = await post("explain?top=1&parts=attention,tokens", current.image, signal);
  current.view = await loadPicture(evidence.view.picture);
  showInput(evidence.input);
  showTokens(evidence.tokens);
  showNotes(evidence.notes);
  current.layers = evidence.attention?.layers.filter((layer) => layer.attention.length) ?? [];
  if (current.layers.length) prepareAttention();
}

function showInput(input) {
  get("input").src = input.picture;
  get("input").alt = "The image as the model gets it";
  get("input-text").textContent = `The model gets the centre at ${input.height}\u00a0×\u00a0${input.width} pixels.`;
  get("seen").hidden = false;
}

function showTokens(tokens) {
  get("tokens").hidden = !tokens.length;
  get("token-grids").replaceChildren(...tokens.map((grid) => {
    const figure = document.createElement("figure");
    const [image, caption, size] = ["img", "figcaption", "small"].map((kind) => document.createElement(kind));
    image.src = grid.picture;
    image.alt = `Tokens ${grid.name}`;
    caption.textContent = grid.name;
    size.textContent = `${grid.height} × ${grid.width} tokens`;
    caption.append(size);
    figure.append(image, caption);
    return figure;
  }));
}

function showNotes(notes) {
  get("notes").hidden = !notes.length;
  get("notes").replaceChildren(...notes.map((note) => {
    const line = document.createElement("p");
    line.textContent = note;
    return line;
  }));
}

function prepareAttention() {
  const { layers } = current;
  const rolls = layers.every((layer) => layer.rollout);
  for (const radio of document.getElementsByName("kind")) {
    radio.disabled = radio.value === "rollout" && !rolls;
    if (!rolls) radio.checked = radio.value === "attention";
  }
  get("layer").max = layers.length;
  get("layer").value = layers.length;
  const num = Math.max(...layers.map((layer) => layer.attention.length));
  const legend = get("heads").querySelector("legend");
  const chips = Array.from({ length: num }, (_, head) => {
    const label = document.createElement("label");
    const [radio, text] = [document.createElement("input"), document.createElement("span")];
    Object.assign(radio, { type: "radio", name: "head", value: head, checked: head === 0 });
    radio.setAttribute("aria-label", head ? `Head ${head}` : "All heads");
    radio.addEventListener("change", drawLayer);
    text.textContent = head || "all";
    label.append(radio, text);
    return label;
  });
  get("heads").replaceChildren(legend, ...chips);
  get("heads").hidden = num < 2;
  get("attention").hidden = false;
  drawLayer();
}

function drawLayer() {
  const { layers } = current;
  const number = Number(get("layer").value);
  const layer = layers[number - 1];
  const kind = document.querySelector("input[name=kind]:checked").value;
  const head = Number(document.querySelector("input[name=head]:checked")?.value ?? 0);
  // Layers share their colours, so that the slider compares them.
  const most = Math.max(...layers.flatMap((each) => each[kind][head] ?? [0]));
  const values = layer[kind][head] ?? layer[kind][0];
  const map = { rows: layer.rows, columns: layer.columns, values };
  drawAttention(get("attention-map"), current.view, map, most);
  const whose = head ? `head ${head}` : "all heads";
  const text = `${layer.name} of ${layers.length}`;
  get("layer-text").textContent = text;
  get("layer").setAttribute("aria-valuetext", text);
  get("attention-most").textContent = `${most.toFixed(1)} × the mean`;
  const what = kind === "rollout" ? `Attention rollout up to ${layer.name}` : `Attention of ${layer.name}`;
  const strongest = Math.max(...values).toFixed(1);
  get("attention-map").setAttribute(
    "aria-label", `${what}, ${whose}: strongest at the ${whereMost(map)}, ${strongest} times the mean.`,
  );
}

async function offerOcclusion(signal) {
  const seconds = (OCCLUDED * current.perImage) / 1000;
  const { chosen } = current;
  get("occlusion").hidden = false;
  get("occlusion-text").textContent = `The probability of “${chosen.name}” is measured again with each part of the image hidden.`;
  if (seconds > QUICK_SECONDS && !current.measured) {
    drawOcclusion(get("occlusion-map"), current.view, { rows: 1, columns: 1, values: [0] }, 1);
    get("occlusion-map").setAttribute("aria-label", "Not measured yet");
    get("measure").textContent = `Measure (about ${Math.ceil(seconds)} s)`;
    get("measure-box").hidden = false;
    get("occlusion-least").textContent = get("occlusion-most").textContent = "";
    return;
  }
  await measure(signal);
}

async function measure(signal) {
  const { chosen } = current;
  get("measure-box").hidden = true;
  get("occlusion").classList.add("waiting");
  get("occlusion-text").textContent = `Measuring what hiding each part costs “${chosen.name}” …`;
  try {
    const found = await post(`explain?parts=occlusion&class=${chosen.index}`, current.image, signal);
    if (chosen !== current.chosen) return; // another class was chosen meanwhile
    current.measured = true;
    showOcclusion(found.occlusion, chosen);
  } finally {
    if (chosen === current.chosen) get("occlusion").classList.remove("waiting");
  }
}

function showOcclusion({ rows, columns, points }, chosen) {
  const most = Math.max(...points.map(Math.abs), 0.1);
  const map = { rows, columns, values: points };
  drawOcclusion(get("occlusion-map"), current.view, map, most);
  get("occlusion-least").textContent = `helps ${most.toFixed(1)}`;
  get("occlusion-most").textContent = `costs ${most.toFixed(1)} points`;
  const worst = Math.max(...points);
  const text = worst < 0.05
    ? `Hiding no part costs “${chosen.name}” anything.`
    : `Hiding the ${whereMost(map)} costs “${chosen.name}” the most: ${worst.toFixed(1)} percentage points.`;
  get("occlusion-text").textContent = text;
  get("occlusion-map").setAttribute("aria-label", text);
}

// ── what the user does ──────────────────────────────────────────────────────────────

function say(sentence) {
  get("status").textContent = sentence;
}

function complain(sentence) {
  get("problem").textContent = sentence;
  get("problem").hidden = !sentence;
}

function imageIn(transfer) {
  return [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/") || !file.type)
    ?? transfer?.files?.[0];
}

function take(image) {
  if (image) show(image);
}

function listen() {
  for (const id of ["file", "camera"]) {
    get(id).addEventListener("change", (event) => {
      take(event.target.files[0]);
      event.target.value = ""; // the same file may be chosen again
    });
  }
  document.addEventListener("paste", (event) => take(imageIn(event.clipboardData)));
  let inside = 0; // enter and leave come for every element below the pointer
  const hint = (change) => {
    inside = Math.max(0, inside + change);
    get("drop-hint").hidden = inside === 0;
  };
  document.addEventListener("dragenter", (event) => {
    if (event.dataTransfer?.types.includes("Files")) hint(1);
  });
  document.addEventListener("dragleave", () => hint(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    hint(-inside);
    take(imageIn(event.dataTransfer));
  });
  get("top").addEventListener("change", () => current?.predictions && showPredictions(current.predictions));
  get("layer").addEventListener("input", drawLayer);
  for (const radio of document.getElementsByName("kind")) radio.addEventListener("change", drawLayer);
  get("measure").addEventListener("click", () => {
    measure(stopping.signal).catch((error) => error.name === "AbortError" || complain(error.message));
  });
  get("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => takeToken() && describeModel());
}

takeToken();
listen();
describeModel().catch((error) => complain(error.message));
