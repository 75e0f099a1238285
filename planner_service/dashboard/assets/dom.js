// Elements from plain values. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Make an HTML element: its name, attributes (`onclick` and the like listen), and children. */
export function h(name, properties, ...children) {
  return filled(document.createElement(name), properties, children);
}

/** Make an SVG element. */
export function s(name, properties, ...children) {
  return filled(document.createElementNS(SVG, name), properties, children);
}

/** Put children in place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Make a parent hold these elements; those it has already stay in place, with focus and all. */
export function hold(parent, elements) {
  const wanted = elements.filter(Boolean);
  wanted.forEach((element, index) => {
    const there = parent.children[index];
    if (there === element) return;
    if (there) there.replaceWith(element);
    else parent.append(element);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

/** Return a function that makes an element anew only when the data it shows are others than before. */
export function keeper() {
  const kept = new Map();
  return (name, data, make) => {
    const text = JSON.stringify(data);
    if (kept.get(name)?.text !== text) kept.set(name, { text, element: make() });
    return kept.get(name).element;
  };
}

/** Set an element's text, unless it is that already: assistive technology speaks of changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Call `redraw(width)` now and whenever the element has another width, once a frame. */
export function onWidth(element, redraw) {
  let last = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width > 0 && width !== last) {
      last = width;
      redraw(width);
    }
  });
  observer.observe(element);
  return () => redraw(last || Math.floor(element.clientWidth) || 800);
}
