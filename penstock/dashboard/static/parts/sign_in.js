// What the page shows to those who are not known to the app, or may not see all of it.

import { Component, createRef, html } from "../html.js";
import { key, signIn } from "../model/key.js";

const HEADER_TEXT = /^[\x21-\x7e]+$/;

export class SignIn extends Component {
  field = createRef();
  state = { wrong: null };

  componentDidMount() {
    this.field.current?.focus();
  }

  submit(event) {
    event.preventDefault();
    const text = this.field.current.value.trim();
    if (HEADER_TEXT.test(text)) signIn(text);
    else this.setState({ wrong: "A key has no spaces, and only plain letters, digits and signs." });
  }

  render({ status, reason }, { wrong }) {
    const refused = wrong ?? (status === 403 || key.value ? reason : null);
    return html`<form class="panel sign-in" onSubmit=${(event) => this.submit(event)}>
      <h2>This app asks for a key</h2>
      <label for="key">Key or token, with the grant <code>consume:*</code> or <code>admin</code></label>
      <div class="row">
        <input id="key" type="password" ref=${this.field} autocomplete="off" spellcheck=${false} required />
        <button type="submit">Sign in</button>
      </div>
      ${refused ? html`<p class="failure" role="alert">${refused}</p>` : null}
      <p class="quiet">It is kept in this tab until you close it. To make one, on the machine of the app:</p>
      <pre>penstock keys add NAME 'consume:*'</pre>
    </form>`;
  }
}
