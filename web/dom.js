// Making and changing elements. Texts are always set as text, so nothing that the server tells can become markup.

const SVG = 'http://www.w3.org/2000/svg'

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else put(element, name, value)
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null))
  return element
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children)
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children)
}

// Sets an attribute only when it changes; `undefined` and `false` remove it.
export function put(element, name, value) {
  if (value === undefined || value === false) element.removeAttribute(name)
  else {
    const text = value === true ? '' : String(value)
    if (element.getAttribute(name) !== text) element.setAttribute(name, text)
  }
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text
}

// Brings a list of elements in line with items: one element per key, made once, updated each time, in the items' order.
export function reconcile(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]))
  const wanted = items.map((item) => {
    const key = String(keyOf(item))
    let element = known.get(key)
    if (!element) {
      element = make(item)
      element.dataset.key = key
    }
    update(element, item)
    known.delete(key)
    return element
  })
  known.forEach((child) => child.remove())
  wanted.forEach((element, i) => {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null)
  })
}
