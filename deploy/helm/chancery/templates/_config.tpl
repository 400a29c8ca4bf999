{{/* The configuration of the server, and what it means for its clients. */}}

{{/* The Secret with the certificate of a port; empty without TLS. Takes {root, port}. */}}
{{- define "chancery.tlsSecret" -}}
{{- $tls := index .root.Values.tls .port -}}
{{- if $tls.existingSecret -}}
{{- $tls.existingSecret -}}
{{- else if $tls.certManager.enabled -}}
{{- printf "%s-%s-tls" (include "chancery.fullname" .root) .port -}}
{{- end -}}
{{- end -}}

{{/* The configuration as a tree: the values of `config`, and defaults that it does not set. */}}
{{- define "chancery.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- range $port := list "xds" "admin" -}}
{{- if include "chancery.tlsSecret" (dict "root" $ "port" $port) -}}
{{- $section := default dict (get $config $port) -}}
{{- if not (hasKey $section "tls_client_ca") -}}
{{- $_ := set $section "tls_client_ca" (printf "/etc/chancery/tls/%s/ca.crt" $port) -}}
{{- end -}}
{{- $_ := set $config $port $section -}}
{{- end -}}
{{- end -}}
{{- if .Values.secrets.existingSecret -}}
{{- $secrets := default dict (get $config "secrets") -}}
{{- $_ := set $secrets "key_file" "/etc/chancery/keys/secrets.key" -}}
{{- $_ := set $config "secrets" (merge $secrets (dict "require" true)) -}}
{{- end -}}
{{- $admin := default dict (get $config "admin") -}}
{{- if not (hasKey $admin "hosts") -}}
{{- $name := printf "%s-admin" (include "chancery.fullname" .) -}}
{{- $_ := set $admin "hosts" (include "chancery.hosts" (dict "root" . "name" $name) | fromYamlArray) -}}
{{- end -}}
{{- /* Access rules give nothing to a caller without a certificate. Probes can then reach /readyz without one. */ -}}
{{- $admins := get (default dict (get $config "access")) "admins" -}}
{{- if and $admins (get $admin "tls_client_ca") (not (hasKey $admin "tls_client_cert")) -}}
{{- $_ := set $admin "tls_client_cert" "optional" -}}
{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{- toJson $config -}}
{{- end -}}

{{/* The configuration as TOML. */}}
{{- define "chancery.toml" -}}
{{- range $section, $keys := include "chancery.config" . | fromJson }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "chancery.tomlValue" $value }}
{{- end }}
{{ end -}}
{{- end -}}

{{/* A value as TOML. Helm reads all numbers as floating point, but most keys are whole numbers. */}}
{{- define "chancery.tomlValue" -}}
{{- if kindIs "map" . -}}
{
{{- range $index, $key := keys . | sortAlpha -}}
{{- if $index }}, {{ end }}{{ $key | toJson }} = {{ include "chancery.tomlValue" (get $ $key) }}
{{- end -}}
}
{{- else if kindIs "slice" . -}}
[
{{- range $index, $item := . -}}
{{- if $index }}, {{ end }}{{ include "chancery.tomlValue" $item }}
{{- end -}}
]
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* Whether clients of the admin port have certificates: "required", "optional", or empty. A Secret of the user may require them. */}}
{{- define "chancery.adminCertificates" -}}
{{- if include "chancery.tlsSecret" (dict "root" . "port" "admin") -}}
{{- $admin := get (include "chancery.config" . | fromJson) "admin" -}}
{{- if or .Values.existingConfigSecret (get $admin "tls_client_ca") -}}
{{- if .Values.existingConfigSecret }}required{{ else }}{{ default "required" (get $admin "tls_client_cert") }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The path of the UNIX socket that the probes use; empty if they use the admin port. */}}
{{- define "chancery.probeSocket" -}}
{{- if eq (include "chancery.adminCertificates" .) "required" -}}
{{- default "/run/chancery/admin.sock" (dig "admin" "socket" "" .Values.config) -}}
{{- end -}}
{{- end -}}

{{/* Whether the chart sets this socket, because `config` does not. */}}
{{- define "chancery.ownSocket" -}}
{{- if and (include "chancery.probeSocket" .) (not (dig "admin" "socket" "" .Values.config)) -}}true{{- end -}}
{{- end -}}

{{/* The Secret with the certificate of an operator for backups and tests; empty if there is none. */}}
{{- define "chancery.operatorSecret" -}}
{{- if .Values.backup.existingSecret -}}
{{- .Values.backup.existingSecret -}}
{{- else if and .Values.backup.enabled .Values.tls.admin.certManager.enabled (include "chancery.adminCertificates" .) -}}
{{- include "chancery.fullname" . }}-backup-tls
{{- end -}}
{{- end -}}

{{/* The variables and the mounts with which a command connects to the admin port. */}}
{{- define "chancery.clientEnv" -}}
- {name: CHANCERY_SERVER, value: {{ include "chancery.adminServer" . | quote }}}
{{- if include "chancery.tlsSecret" (dict "root" . "port" "admin") }}
- {name: CHANCERY_CA_CERT, value: /etc/chancery/client/ca.crt}
{{- if include "chancery.operatorSecret" . }}
- {name: CHANCERY_CERT, value: /etc/chancery/client/tls.crt}
- {name: CHANCERY_CERT_KEY, value: /etc/chancery/client/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{- define "chancery.clientVolumes" -}}
{{- if include "chancery.tlsSecret" (dict "root" . "port" "admin") -}}
- name: client
  secret:
    {{- with include "chancery.operatorSecret" . }}
    secretName: {{ . }}
    defaultMode: 0440
    {{- else }}
    secretName: {{ include "chancery.tlsSecret" (dict "root" . "port" "admin") }}
    items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "chancery.clientMounts" -}}
{{- if include "chancery.tlsSecret" (dict "root" . "port" "admin") -}}
- {name: client, mountPath: /etc/chancery/client, readOnly: true}
{{- end -}}
{{- end -}}
