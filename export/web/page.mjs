// Classifies an image with an exported model, in the browser: page.json names its files.
import { decode, load, openOnnx } from './files.mjs';
import { preprocess } from './preprocess.mjs';

export { decode };

const element = (id) => document.getElementById(id);

let liteRt; // starts once

// Each runtime makes, of the bytes of a file, a function from pixels and their shape to outputs by name.
const RUNTIMES = {
  onnx: ['ONNX Runtime Web', async (bytes) => {
    const run = await openOnnx(bytes);
    return async (pixels, shape, name) => (await run({ pixels: ['float32', pixels, shape] }, [name]))[name].data;
  }],
  litert: ['LiteRT.js', async (bytes) => {
    const { Tensor, loadAndCompile, loadLiteRt } = await import('./litert/index.js');
    await (liteRt ??= loadLiteRt('litert/wasm/'));
    const model = await loadAndCompile(new Uint8Array(bytes), { accelerator: 'wasm' });
    return async (pixels, shape) => (await model.run(new Tensor(pixels, shape)))[0].data();
  }],
};

let settings;
const runners = {};

/** The function that runs a model; it is loaded once. */
export async function runner(runtime, report) {
  try {
    return await (runners[runtime] ??= load(settings.models[runtime], report).then(RUNTIMES[runtime][1]));
  } catch (error) {
    delete runners[runtime]; // the next image tries again
    if (error.message.includes('is missing')) throw error;
    throw new Error(`${settings.models[runtime]} does not run in ${RUNTIMES[runtime][0]}: ${error.message ?? error}`);
  }
}

function probabilities(logits, activation) {
  if (activation === 'sigmoid') return logits.map((x) => 1 / (1 + Math.exp(-x)));
  const largest = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

/** Classifies a file: logits, probabilities, pixels of the model, and milliseconds. */
export async function classify(file, runtime, report = () => {}) {
  const { card } = settings ??= JSON.parse(new TextDecoder().decode(await load('page.json')));
  const run = await runner(runtime, report);
  report('Classifying…');
  const begin = performance.now();
  const pixels = preprocess(await decode(file, card.preprocessing), card);
  const ready = performance.now();
  const output = await run(pixels, [1, ...card.input_shape], card.output ?? 'logits');
  const end = performance.now();
  const logits = Array.from(output);
  const scores = probabilities(logits, card.activation);
  return { logits, scores, pixels, milliseconds: [ready - begin, end - ready] };
}

let current; // the file
let turn = 0; // of the last image: an older one that ends later is not shown

async function show(file) {
  if (!file) return;
  current = file;
  const mine = ++turn;
  const say = (text) => mine === turn && (element('status').textContent = text);
  element('error').textContent = element('times').textContent = '';
  element('classes').replaceChildren();
  element('drop').querySelector('img')?.remove();
  element('hint').textContent = `${file.name} (choose or drop another)`;
  try {
    const found = await classify(file, element('runtime').value, say);
    if (mine !== turn) return;
    const image = Object.assign(new Image(), { src: URL.createObjectURL(file), alt: file.name });
    image.onload = () => URL.revokeObjectURL(image.src);
    element('drop').prepend(image);
    const order = found.scores.map((_, i) => i).sort((a, b) => found.scores[b] - found.scores[a]).slice(0, 5);
    for (const index of order) {
      const row = document.createElement('li');
      const percent = `${(100 * found.scores[index]).toFixed(1)} %`;
      row.style.setProperty('--share', percent.replace(' ', ''));
      for (const text of [settings.card.labels[index], percent]) {
        row.append(Object.assign(document.createElement('span'), { textContent: text }));
      }
      element('classes').append(row);
    }
    say(`Most likely: ${settings.card.labels[order[0]]}`);
    const [before, model] = found.milliseconds.map((x) => x.toFixed(0));
    element('times').textContent = `Preprocessing ${before} ms, model ${model} ms.`;
  } catch (error) {
    say('');
    if (mine === turn) element('error').textContent = error.message ?? String(error);
  }
}

element('file').onchange = (event) => {
  show(event.target.files[0]);
  event.target.value = ''; // so that the same file can be chosen again
};
element('runtime').onchange = () => show(current);
for (const type of ['dragover', 'dragleave', 'drop']) {
  addEventListener(type, (event) => {
    event.preventDefault(); // or the browser opens the file
    element('drop').classList.toggle('over', type === 'dragover');
    if (type === 'drop') show(event.dataTransfer.files[0]);
  });
}
try {
  settings = JSON.parse(new TextDecoder().decode(await load('page.json')));
  for (const name of Object.keys(settings.models)) element('runtime').append(new Option(RUNTIMES[name][0], name));
  element('status').textContent = `Ready. ${settings.card.labels.length} classes.`;
} catch (error) {
  element('status').textContent = '';
  element('error').textContent = error.message;
}
