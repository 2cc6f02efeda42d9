// Draws maps over pictures, and says in words what they show.

const INFERNO = ["#000004", "#420a68", "#932667", "#dd513a", "#fca50a", "#fcffa4"];
const BLUE_RED = ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"];

/** Loads a picture; a data: URL needs no request. */
export async function loadPicture(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** Draws values from 0 to `most`, bright where they are large. */
export function drawAttention(canvas, picture, map, most) {
  drawOverlay(canvas, picture, map, INFERNO, (value) => value / most);
}

/** Draws values from -most to most: red where they are positive. */
export function drawOcclusion(canvas, picture, map, most) {
  drawOverlay(canvas, picture, map, BLUE_RED, (value) => (value / most + 1) / 2);
}

/** Draws the picture in grey and a map of colours over it. */
function drawOverlay(canvas, picture, map, ramp, position) {
  const scale = Math.max(1, Math.ceil(448 / Math.max(picture.width, picture.height)));
  canvas.width = picture.width * scale;
  canvas.height = picture.height * scale;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = scale === 1;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const [red, green, blue] = pixels.data.subarray(i, i + 3);
    pixels.data.fill(0.3 * red + 0.59 * green + 0.11 * blue, i, i + 3);
  }
  context.putImageData(pixels, 0, 0);
  context.globalAlpha = 0.55;
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(coloured(map, ramp, position), 0, 0, canvas.width, canvas.height);
  context.globalAlpha = 1;
}

/** A map as a picture with one pixel per value. */
function coloured(map, ramp, position) {
  const small = document.createElement("canvas");
  small.width = map.columns;
  small.height = map.rows;
  const context = small.getContext("2d");
  const pixels = context.createImageData(map.columns, map.rows);
  const colours = ramp.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  map.values.forEach((value, index) => {
    const place = Math.min(Math.max(position(value), 0), 1) * (colours.length - 1);
    const below = Math.min(Math.floor(place), colours.length - 2);
    const part = place - below;
    for (let channel = 0; channel < 3; channel += 1) {
      const [low, high] = [colours[below][channel], colours[below + 1][channel]];
      pixels.data[4 * index + channel] = low + part * (high - low);
    }
    pixels.data[4 * index + 3] = 255;
  });
  context.putImageData(pixels, 0, 0);
  return small;
}

/** Where the largest value is, for those who do not see the map. */
export function whereMost(map) {
  const index = map.values.indexOf(Math.max(...map.values));
  const row = Math.floor(index / map.columns) / Math.max(map.rows - 1, 1);
  const column = (index % map.columns) / Math.max(map.columns - 1, 1);
  const vertical = row < 1 / 3 ? "top" : row > 2 / 3 ? "bottom" : "";
  const horizontal = column < 1 / 3 ? "left" : column > 2 / 3 ? "right" : "";
  return [vertical, horizontal].filter(Boolean).join(" ") || "centre";
}
