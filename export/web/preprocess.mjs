// From an image of any size to the pixels of a model, as in evaluation: the JavaScript of ../classify.py.

const keys = (x) => (x <= 1 ? 1.5 * x ** 3 - 2.5 * x ** 2 + 1 : -0.5 * x ** 3 + 2.5 * x ** 2 - 4 * x + 2);
// Half the width of each kernel in pixels, and its values.
const KERNELS = { bilinear: [1, (x) => 1 - x], bicubic: [2, keys] };

/** First input pixel and weights of each of `side` output pixels along an axis of `own` pixels. */
function weights(own, side, name, antialias, pillow) {
  const scale = own / side;
  const [radius, kernel] = KERNELS[name] ?? [0, null];
  const stretch = antialias ? Math.max(scale, 1) : 1;
  return Array.from({ length: side }, (_, i) => {
    const centre = (i + 0.5) * scale;
    if (name === 'nearest') return [Math.floor(centre), [1]];
    const reach = kernel ? radius * stretch : scale / 2;
    const first = Math.max(Math.floor(centre - reach), 0);
    const last = Math.min(Math.ceil(centre + reach), own);
    const found = [];
    for (let pixel = first; pixel < last; pixel++) {
      const distance = Math.abs(pixel + 0.5 - centre) / stretch;
      if (kernel) found.push(distance < radius ? kernel(distance) : 0);
      else found.push(Math.max(Math.min(centre + reach, pixel + 1) - Math.max(centre - reach, pixel), 0)); // area
    }
    const sum = found.reduce((a, b) => a + b);
    // Pillow's weights have 22 bits behind the point, so that its sums are exact.
    return [first, found.map((weight) => (pillow ? Math.round((weight / sum) * 2 ** 22) / 2 ** 22 : weight / sum))];
  });
}

/** Resizes along one axis: `lines` of `own` pixels; pixel `p` of line `l` is at `l * line + p * step`. */
function resizeAxis(values, lines, line, step, list, round) {
  const side = list.length;
  const result = new Float32Array(lines * side * 3);
  for (let l = 0; l < lines; l++) {
    for (let i = 0; i < side; i++) {
      const [first, row] = list[i];
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0;
        for (let k = 0; k < row.length; k++) sum += row[k] * values[l * line + (first + k) * step + channel];
        result[(l * side + i) * 3 + channel] = round(sum);
      }
    }
  }
  return result; // lines x side x 3
}

/** Size (height, width) of an image before the crop. */
export function resizedSize(own, size, library, settings) {
  const { crop_ratio: ratio, crop_mode: mode = 'center' } = settings;
  const larger = size.map((side) => Math.floor(side / (ratio ?? 1)));
  if (ratio === null || mode === 'squash') return larger;
  if (library === 'tensorflow') { // covers the size
    const scale = Math.max(...own.map((side, axis) => larger[axis] / side));
    return own.map((side, axis) => Math.max(roundEven(side * scale), larger[axis]));
  }
  if (mode === 'center' && larger[0] === larger[1]) {
    return own.map((side) => Math.floor((side * larger[0]) / Math.min(...own)));
  }
  const ratios = own.map((side, axis) => side / larger[axis]);
  const scale = mode === 'border' ? Math.max(...ratios) : Math.min(...ratios);
  return own.map((side) => Math.max(roundEven(side / scale), 1));
}

/** Rounds halves to even numbers, as Python and TensorFlow do. */
const roundEven = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
const clip = (x) => Math.min(Math.max(x, 0), 255);

/**
 * Resizes an image `{ data, width, height }` in RGBA to [rows, columns]; `pillow` rounds after each axis.
 * Returns float32 values, and a function from row and column to the first of the three of a pixel.
 */
export function resize({ data, width, height }, [rows, columns], interpolation, pillow) {
  const antialias = pillow || interpolation === 'bicubic';
  const whole = (x) => clip(Math.floor(x + 0.5));
  const last = { bicubic: (x) => clip(roundEven(x)), area: Math.floor }[interpolation] ?? ((x) => x);
  const [down, across] = [[height, rows], [width, columns]].map(
    ([own, side]) => weights(own, side, interpolation, antialias, pillow));
  // Each pass makes lines of the axis that it resizes, one for each pixel of the other axis.
  const [between, end] = pillow ? [whole, whole] : [(x) => x, last];
  const downFirst = pillow && height > rows && height - rows > 2 * (width - columns); // as Pillow 13
  const half = downFirst ? resizeAxis(data, width, 4, width * 4, down, between)
    : resizeAxis(data, height, width * 4, 4, across, between);
  const values = downFirst ? resizeAxis(half, rows, 3, rows * 3, across, end)
    : resizeAxis(half, columns, 3, columns * 3, down, end);
  return { values, at: (y, x) => (downFirst ? y * columns + x : x * rows + y) * 3 };
}

/** Pixels of the model, float32 in [0, 255], of an image `{ data, width, height }` in RGBA. */
export function preprocess(image, card) {
  const [rows, columns] = card.input_shape;
  const { library = 'tensorflow', interpolation, mean } = card.preprocessing;
  const larger = resizedSize([image.height, image.width], [rows, columns], library, card.preprocessing);
  const { values, at } = resize(image, larger, interpolation, library !== 'tensorflow');
  // Cuts out the centre, or adds a border of the mean colour.
  const excess = [larger[0] - rows, larger[1] - columns];
  const [top, left] = excess.map((e) => (e < 0 ? Math.ceil(e / 2)
    : library === 'timm' ? roundEven(e / 2) : Math.floor(e / 2)));
  const pixels = new Float32Array(rows * columns * 3);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      const [from, to] = [y + top, x + left];
      const inside = from >= 0 && from < larger[0] && to >= 0 && to < larger[1];
      for (let channel = 0; channel < 3; channel++) {
        pixels[(y * columns + x) * 3 + channel] = inside
          ? values[at(from, to) + channel]
          : Math.round(mean[channel] ?? mean[0]);
      }
    }
  }
  return pixels;
}
